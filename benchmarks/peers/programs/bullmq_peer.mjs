// BullMQ: concurrency 100, finished jobs are removed.
import { Queue, Worker } from "bullmq";
import IORedis from "ioredis";
import * as harness from "./harness.mjs";

const connection = new IORedis(harness.URL_, { maxRetriesPerRequest: null });
const options = { removeOnComplete: true };
if (harness.STEP === "enqueue") {
  const queue = new Queue("peers", { connection });
  await queue.waitUntilReady();
  await harness.timeEnqueue(async () => {
    for (const numbers of harness.chunks(500))
      await queue.addBulk(numbers.map((n) => ({ name: "job", data: { x: n, y: 22 }, opts: options })));
  });
} else if (harness.STEP === "send") {
  const queue = new Queue("peers", { connection });
  await queue.waitUntilReady();
  await harness.sendAll((sent) => queue.add("job", { x: sent, y: 22 }, options));
} else {
  const worker = new Worker("peers", async (job) => harness.count(job.data.x), { connection, concurrency: 100 });
  await worker.waitUntilReady();
  harness.ready();
}
