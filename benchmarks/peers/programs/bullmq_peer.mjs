// BullMQ: concurrency 100, finished jobs removed.
import { Queue, Worker } from "bullmq";
import IORedis from "ioredis";
import * as tally from "./tally.mjs";

const connection = new IORedis(tally.URL_, { maxRetriesPerRequest: null });
const options = { removeOnComplete: true };
if (tally.VERB === "put") {
  const queue = new Queue("peers", { connection });
  await queue.waitUntilReady();
  await tally.told(async () => {
    for (const numbers of tally.chunks(500))
      await queue.addBulk(numbers.map((n) => ({ name: "job", data: { x: n, y: 22 }, opts: options })));
  });
} else if (tally.VERB === "ask") {
  const queue = new Queue("peers", { connection });
  await queue.waitUntilReady();
  await tally.spaced((sent) => queue.add("job", { x: sent, y: 22 }, options));
} else {
  const worker = new Worker("peers", async (job) => tally.job(job.data.x), { connection, concurrency: 100 });
  await worker.waitUntilReady();
  tally.ready();
}
