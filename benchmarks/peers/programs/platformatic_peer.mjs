// @platformatic/job-queue: concurrency 100 on Redis; asks for Node 22.19, so on 20 a missing function is made.
import { Queue, RedisStorage } from "@platformatic/job-queue";
import * as tally from "./tally.mjs";

Promise.withResolvers ??= () => {
  let resolve, reject;
  const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
};
const storage = new RedisStorage({ url: tally.URL_, keyPrefix: "peers:" });
const queue = new Queue({ storage, concurrency: 100, resultTTL: 1000 });
if (tally.VERB === "drain" || tally.VERB === "answer") {
  queue.execute(async (job) => tally.job(job.payload.x));
  await queue.start();
  tally.ready();
} else {
  await queue.start();
  let n = 0;
  const enqueue = (x) => queue.enqueue(`job-${process.pid}-${n++}`, { x, y: 22 });
  if (tally.VERB === "ask") await tally.spaced(enqueue);
  else
    await tally.told(async () => {
      for (const numbers of tally.chunks(50)) await Promise.all(numbers.map(enqueue));
    });
}
