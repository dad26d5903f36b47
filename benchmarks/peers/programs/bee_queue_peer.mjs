// bee-queue: concurrency 300 (a tenth less CPU than 100), its "minimal" settings: without stored jobs and delayed jobs, and without events
// except to wait for a result; finished jobs are removed unless PEER_KEEP is set.
import Queue from "bee-queue";
import * as harness from "./harness.mjs";

const url = new URL(harness.URL_);
const redis = {
  host: url.hostname,
  port: Number(url.port),
  password: decodeURIComponent(url.password) || undefined,
};
const withEvents = harness.STEP === "result" || process.env.PEER_RESULTS === "1";
const queues = new Map();
for (const name of harness.QUEUES)
  queues.set(
    name,
    new Queue(name, {
      redis,
      isWorker: harness.isWorker,
      getEvents: harness.STEP === "result",
      sendEvents: withEvents,
      storeJobs: harness.STEP === "result",
      removeOnSuccess: harness.KEEP === 0,
    })
  );
for (const queue of queues.values()) await queue.ready();
const queue = queues.get(harness.QUEUES[0]);
const run = async (job) => harness.count(job.data.x);
const save = (x, name) => queues.get(name).createJob({ x, y: harness.Y }).save();
if (harness.STEP === "enqueue") {
  await harness.timeEnqueue(async () => {
    for (const [name, numbers] of harness.chunks(500)) {
      const target = queues.get(name);
      const errors = await target.saveAll(numbers.map((n) => target.createJob({ x: n, y: harness.Y })));
      if (errors.size) throw [...errors.values()][0];
    }
  });
} else if (harness.STEP === "single") await harness.timeSingle((n) => save(n, harness.QUEUES[0]));
else if (harness.STEP === "send") await harness.sendAll(save);
else if (harness.STEP === "result")
  await harness.timeResults(
    (n) =>
      new Promise((resolve, reject) => {
        const job = queue.createJob({ x: n, y: harness.Y });
        job.on("succeeded", resolve);
        job.save().catch(reject);
      })
  );
else for (const one of queues.values()) one.process(300, run);
