// The common part of the Node programs; the steps and results are the same as in harness.py.
import { createHash } from "node:crypto";
import { openSync, writeSync, closeSync } from "node:fs";
const { PEER_STEP, PEER_COUNT, PEER_URL, PEER_KEEP, PEER_QUEUES, PEER_REPORT, PEER_PAYLOAD } = process.env;
export const STEP = PEER_STEP;
export const COUNT = Number(PEER_COUNT);
// Named with an underscore because URL is a global class.
export const URL_ = PEER_URL;
export const KEEP = Number(PEER_KEEP ?? 0);
// The second argument of a job. With PEER_PAYLOAD it is a text of so many bytes that compress badly.
const payload = Number(PEER_PAYLOAD ?? 0);
const hex = (n) => createHash("sha512").update(String(n)).digest("hex");
export const Y = payload
  ? Array.from({ length: Math.ceil(payload / 128) }, (_, n) => hex(n)).join("").slice(0, payload)
  : 22;
const numberOfQueues = Number(PEER_QUEUES ?? 1);
export const QUEUES =
  numberOfQueues > 1 ? Array.from({ length: numberOfQueues }, (_, n) => `peers-${n}`) : ["peers"];
export const isWorker = STEP === "work" || STEP === "receive";
// Milliseconds between two jobs of `send`.
export const PAUSE = 3;
const FIRST = 1;
export const now = () => Number(process.hrtime.bigint());
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

let calls = 0;
const latencies = [];

function report(values) {
  const fifo = openSync(PEER_REPORT, "w");
  const data = Buffer.from(JSON.stringify(values) + "\n");
  for (let written = 0; written < data.length; ) written += writeSync(fifo, data, written);
  closeSync(fifo);
}

function work() {
  if (++calls === 1) report({ first: now() });
  if (calls === COUNT) report({ last: now() });
}

function receive(sent) {
  latencies.push((now() - sent) / 1e6);
  if (++calls === FIRST) report({ first: now() });
  if (calls === FIRST + COUNT) report({ last: now(), ms: latencies.slice(FIRST) });
}

// Counts one call of the handler; `sent` is the time of the enqueue in ns.
export const count = STEP === "receive" ? receive : work;

export function finish(result) {
  process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
}

// Enqueues all jobs and prints the seconds.
export async function timeEnqueue(enqueueAll) {
  const begin = performance.now();
  await enqueueAll();
  finish({ seconds: (performance.now() - begin) / 1000 });
}

// Enqueues one job after the other for COUNT ms and prints jobs a second.
export async function timeSingle(enqueue) {
  const begin = performance.now();
  let n = 0;
  while (performance.now() < begin + COUNT) await enqueue(n++);
  finish({ per_second: (n * 1000) / (performance.now() - begin) });
}

// Runs COUNT jobs one after the other and prints the ms of each.
export async function timeResults(run) {
  const ms = [];
  for (let n = 0; n < COUNT; n++) {
    const begin = performance.now();
    await run(n);
    ms.push(performance.now() - begin);
    await sleep(PAUSE);
  }
  finish({ ms });
}

// Yields a queue in turn, and the numbers of its next jobs in an array of at most `size`.
export function* chunks(size) {
  const step = QUEUES.length;
  for (let start = 0; start * step < COUNT; start += size)
    for (let q = 0; q < step; q++) {
      const numbers = [];
      for (let n = start * step + q; n < COUNT && numbers.length < size; n += step) numbers.push(n);
      yield [QUEUES[q], numbers];
    }
}

// Enqueues one job, waits for a line of standard input, and enqueues one job after each pause.
export async function sendAll(enqueue) {
  await enqueue(now(), QUEUES[0]);
  await new Promise((done) => process.stdin.once("data", done));
  for (let n = 0; n < COUNT; n++) {
    await sleep(PAUSE);
    await enqueue(now(), QUEUES[n % QUEUES.length]);
  }
  process.exit(0);
}
