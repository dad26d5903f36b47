// graphile-worker: concurrency 10, a local queue of 500, completion in batches.
import { makeWorkerUtils, run } from "graphile-worker";
import * as tally from "./tally.mjs";

const connectionString = tally.URL_;
if (tally.VERB === "drain" || tally.VERB === "answer") {
  const runner = await run({
    connectionString,
    concurrency: 10,
    noHandleSignals: true,
    logger: undefined,
    taskList: { job: (payload) => tally.job(payload.x) },
    preset: {
      worker: {
        connectionString,
        localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
  tally.ready();
  await runner.promise;
} else {
  const client = await makeWorkerUtils({ connectionString });
  if (tally.VERB === "prepare") {
    await client.migrate();
    process.exit(0);
  }
  if (tally.VERB === "ask") await tally.spaced((sent) => client.addJob("job", { x: sent, y: 22 }));
  else
    await tally.told(async () => {
      for (const numbers of tally.chunks(500))
        await client.addJobs(numbers.map((n) => ({ identifier: "job", payload: { x: n, y: 22 } })));
    });
}
