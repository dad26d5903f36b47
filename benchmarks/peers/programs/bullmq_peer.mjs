// BullMQ: concurrency 100, finished jobs are removed unless PEER_KEEP is set.
import { Queue, QueueEvents, Worker } from "bullmq";
import { Redis } from "ioredis";
import * as harness from "./harness.mjs";

const connection = new Redis(harness.URL_, { maxRetriesPerRequest: null });
const opts = { removeOnComplete: harness.KEEP === 0 };
const queues = new Map();
if (!harness.isWorker)
  for (const name of harness.QUEUES) {
    queues.set(name, new Queue(name, { connection }));
    await queues.get(name).waitUntilReady();
  }
const queue = queues.get(harness.QUEUES[0]);
const add = (x, name) => queues.get(name).add("job", { x, y: harness.Y }, opts);
if (harness.STEP === "enqueue")
  await harness.timeEnqueue(async () => {
    for (const [name, numbers] of harness.chunks(500))
      await queues.get(name).addBulk(numbers.map((n) => ({ name: "job", data: { x: n, y: harness.Y }, opts })));
  });
else if (harness.STEP === "single") await harness.timeSingle((n) => add(n, harness.QUEUES[0]));
else if (harness.STEP === "send") await harness.sendAll(add);
else if (harness.STEP === "result") {
  const events = new QueueEvents(harness.QUEUES[0], { connection });
  await events.waitUntilReady();
  await harness.timeResults(async (n) => {
    const job = await queue.add("job", { x: n, y: harness.Y }, {});
    await job.waitUntilFinished(events);
  });
} else
  for (const name of harness.QUEUES)
    new Worker(name, async (job) => harness.count(job.data.x), { connection, concurrency: 100 });
