// bee-queue: concurrency 100; events, stored jobs and delayed jobs are off; finished jobs are removed.
import Queue from "bee-queue";
import * as harness from "./harness.mjs";

const url = new URL(harness.URL_);
const isWorker = harness.STEP === "drain" || harness.STEP === "receive";
const queue = new Queue("peers", {
  redis: { host: url.hostname, port: Number(url.port), password: decodeURIComponent(url.password) || undefined },
  isWorker,
  getEvents: false,
  sendEvents: false,
  storeJobs: false,
  removeOnSuccess: true,
});
await queue.ready();
if (harness.STEP === "enqueue") {
  await harness.timeEnqueue(async () => {
    for (const numbers of harness.chunks(500)) {
      const errors = await queue.saveAll(numbers.map((n) => queue.createJob({ x: n, y: 22 })));
      if (errors.size) throw [...errors.values()][0];
    }
  });
} else if (harness.STEP === "send") {
  await harness.sendAll((sent) => queue.createJob({ x: sent, y: 22 }).save());
} else {
  queue.process(100, async (job) => harness.count(job.data.x));
  harness.ready();
}
