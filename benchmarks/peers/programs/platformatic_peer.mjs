// @platformatic/job-queue: concurrency 100 on Redis.
import { Queue, RedisStorage } from "@platformatic/job-queue";
import * as harness from "./harness.mjs";

const storage = new RedisStorage({ url: harness.URL_, keyPrefix: "peers:" });
const queue = new Queue({ storage, concurrency: 100, resultTTL: 1000 });
if (harness.isWorker) {
  queue.execute(async (job) => harness.count(job.payload.x));
  await queue.start();
} else {
  await queue.start();
  let n = 0;
  const enqueue = (x) => queue.enqueue(`job-${process.pid}-${n++}`, { x, y: 22 });
  if (harness.STEP === "send") await harness.sendAll(enqueue);
  else if (harness.STEP === "single") await harness.timeSingle(enqueue);
  else
    await harness.timeEnqueue(async () => {
      for (const [, numbers] of harness.chunks(50)) await Promise.all(numbers.map(enqueue));
    });
}
