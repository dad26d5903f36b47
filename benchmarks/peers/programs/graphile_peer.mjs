// graphile-worker with the settings of its own performance test: 24 jobs at a time, a local queue, completions in
// batches, no log (NO_LOG_SUCCESS=1 is in the environment). A local queue of 5,000 jobs takes a fifth less CPU
// than one of 500, the number in its test.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import * as harness from "./harness.mjs";

const connectionString = harness.URL_;
const logger = new Logger(() => () => {});
if (harness.isWorker) {
  const runner = await run({
    noHandleSignals: true,
    taskList: { job: (payload) => harness.count(payload.x) },
    preset: {
      worker: {
        connectionString,
        logger,
        concurrentJobs: 24,
        maxPoolSize: 25,
        localQueue: { size: 5000, refetchDelay: { durationMs: 10 } },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
  await runner.promise;
} else {
  const client = await makeWorkerUtils({ connectionString, logger });
  const add = (x) => client.addJob("job", { x, y: harness.Y });
  if (harness.STEP === "prepare") {
    await client.migrate();
    harness.finish({});
  } else if (harness.STEP === "send") await harness.sendAll(add);
  else if (harness.STEP === "single") await harness.timeSingle(add);
  else
    await harness.timeEnqueue(async () => {
      for (const [, numbers] of harness.chunks(500))
        await client.addJobs(numbers.map((n) => ({ identifier: "job", payload: { x: n, y: harness.Y } })));
    });
}
