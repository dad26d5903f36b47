// The common part of the Node programs; the steps and the log are the same as in flow_harness.py.
import { openSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

const { FLOW_STEP, FLOW_URL, FLOW_LOG, FLOW_PAUSE, FLOW_RECOVERY } = process.env;
export const STEP = FLOW_STEP;
// Named with an underscore because URL is a global class.
export const URL_ = FLOW_URL;
export const RECOVERY = Number(FLOW_RECOVERY ?? 0);
const PAUSE = Number(FLOW_PAUSE ?? 0);
// Flows and nodes that a producer enqueues at a time; one flow if it has more nodes.
const [MAX_FLOWS, MAX_NODES] = [100, 1000];
const file = openSync(FLOW_LOG, "a");
export const now = () => Number(process.hrtime.bigint());
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

export const log = (letter, flow, value) =>
  writeSync(file, `${letter} ${flow} ${value} ${process.pid} ${process.hrtime.bigint()}\n`);
export const ready = () => log("r", 0, 0);

// Runs a node and returns its result. Nodes work one to ten times the pause, so that they end one by one.
export async function runNode(flow, node) {
  if (PAUSE) await sleep(PAUSE * (1 + (node % 10)));
  log("n", flow, node);
  return node;
}

// Writes the start and the end of a fan-in. `read` returns the results; without it the fan-in gets none.
export async function runFanIn(flow, read) {
  log("s", flow, 0);
  if (PAUSE) await sleep(PAUSE);
  const results = read && (await read());
  log("f", flow, results ? results.reduce((sum, one) => sum + one, 0) : -1);
}

// Enqueues chunks of flows with `enqueue(flows, nodes)` for each line of standard input.
export async function produceChunks(enqueue) {
  console.log("{}");
  for await (const line of createInterface({ input: process.stdin })) {
    const { first, flows, nodes } = JSON.parse(line);
    const started = now();
    const size = Math.max(1, Math.min(MAX_FLOWS, Math.floor(MAX_NODES / nodes)));
    for (let at = 0; at < flows; at += size) {
      const numbers = range(Math.min(size, flows - at)).map((n) => first + at + n);
      await enqueue(numbers, nodes);
    }
    console.log(JSON.stringify({ started, ended: now() }));
  }
  process.exit(0);
}

export const range = (size) => Array.from({ length: size }, (_, n) => n);
