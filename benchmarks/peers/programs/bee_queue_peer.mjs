// bee-queue: concurrency 100, without events, stored jobs and delayed jobs; finished jobs removed.
import Queue from "bee-queue";
import * as tally from "./tally.mjs";

const url = new URL(tally.URL_);
const isWorker = tally.VERB === "drain" || tally.VERB === "answer";
const queue = new Queue("peers", {
  redis: { host: url.hostname, port: Number(url.port), password: decodeURIComponent(url.password) || undefined },
  isWorker,
  getEvents: false,
  sendEvents: false,
  storeJobs: false,
  removeOnSuccess: true,
});
await queue.ready();
if (tally.VERB === "put") {
  await tally.told(async () => {
    for (const numbers of tally.chunks(500)) {
      const errors = await queue.saveAll(numbers.map((n) => queue.createJob({ x: n, y: 22 })));
      if (errors.size) throw [...errors.values()][0];
    }
  });
} else if (tally.VERB === "ask") {
  await tally.spaced((sent) => queue.createJob({ x: sent, y: 22 }).save());
} else {
  queue.process(100, async (job) => tally.job(job.data.x));
  tally.ready();
}
