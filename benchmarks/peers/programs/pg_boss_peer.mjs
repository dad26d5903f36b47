// pg-boss: two workers with batches of 3,000 in one process, no pause while batches are full, LISTEN and NOTIFY.
// It always keeps completed jobs.
import { PgBoss } from "pg-boss";
import * as harness from "./harness.mjs";

const boss = new PgBoss({
  connectionString: harness.URL_,
  useListenNotify: harness.isWorker,
  schedule: false,
  supervise: false,
});
boss.on("error", (error) => console.error(error));
await boss.start();
const add = (x, name) => boss.send(name, { x, y: harness.Y });
if (harness.STEP === "prepare") {
  for (const name of harness.QUEUES) await boss.createQueue(name, { notify: true });
  harness.finish({});
} else if (harness.STEP === "send") await harness.sendAll(add);
else if (harness.STEP === "single") await harness.timeSingle((n) => add(n, harness.QUEUES[0]));
else if (harness.STEP === "enqueue")
  await harness.timeEnqueue(async () => {
    for (const [name, numbers] of harness.chunks(500))
      await boss.insert(
        name,
        numbers.map((n) => ({ data: { x: n, y: harness.Y } }))
      );
  });
else {
  const options = { batchSize: 3000, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
  for (const name of harness.QUEUES)
    await boss.work(name, options, async (jobs) => {
      for (const job of jobs) harness.count(job.data.x);
    });
}
