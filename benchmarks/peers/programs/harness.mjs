// The common part of the Node programs; the steps and results are the same as in harness.py.
const [, , step, jobs] = process.argv;
export const STEP = step;
export const COUNT = Number(jobs);
// Named with an underscore because URL is a global class.
export const URL_ = process.env.PEER_URL;
// Milliseconds between two jobs of `send`.
export const PAUSE = 3;
export const now = () => Number(process.hrtime.bigint());
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
export const ready = () => console.log("ready");

let started = 0;
let cpuAtStart = null;
let calls = 0;
const latencies = [];

// Counts one job, which was enqueued at `sent` ns. The last job prints the result and ends the process.
export function count(sent) {
  if (STEP === "receive") latencies.push((now() - sent) / 1e6);
  else if (!calls) {
    started = performance.now();
    cpuAtStart = process.cpuUsage();
  }
  if (++calls === COUNT) {
    const used = process.cpuUsage(cpuAtStart ?? undefined);
    const result =
      STEP === "receive"
        ? { ms: latencies }
        : { seconds: (performance.now() - started) / 1000, cpu_us: (used.user + used.system) / COUNT };
    process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
  }
}

// Enqueues all jobs and prints the seconds.
export async function timeEnqueue(enqueueAll) {
  const begin = performance.now();
  await enqueueAll();
  process.stdout.write(JSON.stringify({ seconds: (performance.now() - begin) / 1000 }) + "\n", () => process.exit(0));
}

// Yields the numbers of all jobs in arrays of `size`.
export function* chunks(size) {
  for (let start = 0; start < COUNT; start += size)
    yield Array.from({ length: Math.min(size, COUNT - start) }, (_, n) => start + n);
}

// Enqueues one job after each pause, with the current time in ns.
export async function sendAll(enqueue) {
  for (let n = 0; n < COUNT; n++) {
    await sleep(PAUSE);
    await enqueue(now());
  }
  process.exit(0);
}
