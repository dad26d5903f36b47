// What every program here tells, on one line of JSON; the twin of tally.py.
const [, , verb, count] = process.argv;
export const VERB = verb;
export const COUNT = Number(count);
export const URL_ = process.env.PEER_URL;
export const PAUSE = 3;
export const now = () => Number(process.hrtime.bigint());
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
export const ready = () => console.log("ready");

let first = 0;
let cpu = null;
let seen = 0;
const late = [];

// Takes one job, which was enqueued at `sent` ns; when all have come, prints and leaves at once.
export function job(sent) {
  if (VERB === "answer") late.push((now() - sent) / 1e6);
  else if (!seen) {
    first = performance.now();
    cpu = process.cpuUsage();
  }
  if (++seen === COUNT) {
    const used = process.cpuUsage(cpu ?? undefined);
    const found =
      VERB === "answer"
        ? { ms: late }
        : { seconds: (performance.now() - first) / 1000, cpu_us: (used.user + used.system) / COUNT };
    process.stdout.write(JSON.stringify(found) + "\n", () => process.exit(0));
  }
}

export async function told(work) {
  const begun = performance.now();
  await work();
  process.stdout.write(JSON.stringify({ seconds: (performance.now() - begun) / 1000 }) + "\n", () => process.exit(0));
}

export function* chunks(size) {
  for (let start = 0; start < COUNT; start += size)
    yield Array.from({ length: Math.min(size, COUNT - start) }, (_, n) => start + n);
}

export async function spaced(enqueue) {
  for (let n = 0; n < COUNT; n++) {
    await sleep(PAUSE);
    await enqueue(now());
  }
  process.exit(0);
}
