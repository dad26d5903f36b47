// graphile-worker: concurrency 10, a local queue of 500, jobs are completed in batches.
import { makeWorkerUtils, run } from "graphile-worker";
import * as harness from "./harness.mjs";

const connectionString = harness.URL_;
if (harness.STEP === "drain" || harness.STEP === "receive") {
  const runner = await run({
    connectionString,
    concurrency: 10,
    noHandleSignals: true,
    logger: undefined,
    taskList: { job: (payload) => harness.count(payload.x) },
    preset: {
      worker: {
        connectionString,
        localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
  harness.ready();
  await runner.promise;
} else {
  const client = await makeWorkerUtils({ connectionString });
  if (harness.STEP === "prepare") {
    await client.migrate();
    process.exit(0);
  }
  if (harness.STEP === "send") await harness.sendAll((sent) => client.addJob("job", { x: sent, y: 22 }));
  else
    await harness.timeEnqueue(async () => {
      for (const numbers of harness.chunks(500))
        await client.addJobs(numbers.map((n) => ({ identifier: "job", payload: { x: n, y: 22 } })));
    });
}
