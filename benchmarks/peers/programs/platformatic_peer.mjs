// @platformatic/job-queue: concurrency 100 on Redis. It requires Node 22.19; on Node 20 we add the missing function.
import { Queue, RedisStorage } from "@platformatic/job-queue";
import * as harness from "./harness.mjs";

Promise.withResolvers ??= () => {
  let resolve, reject;
  const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
};
const storage = new RedisStorage({ url: harness.URL_, keyPrefix: "peers:" });
const queue = new Queue({ storage, concurrency: 100, resultTTL: 1000 });
if (harness.STEP === "drain" || harness.STEP === "receive") {
  queue.execute(async (job) => harness.count(job.payload.x));
  await queue.start();
  harness.ready();
} else {
  await queue.start();
  let n = 0;
  const enqueue = (x) => queue.enqueue(`job-${process.pid}-${n++}`, { x, y: 22 });
  if (harness.STEP === "send") await harness.sendAll(enqueue);
  else
    await harness.timeEnqueue(async () => {
      for (const numbers of harness.chunks(50)) await Promise.all(numbers.map(enqueue));
    });
}
