// BullMQ: FlowProducer, concurrency 100. Completed jobs are removed; their results stay in the parent's hash.
import { FlowProducer, Worker } from "bullmq";
import { Redis } from "ioredis";
import * as harness from "./flow_harness.mjs";

const connection = new Redis(harness.URL_, { maxRetriesPerRequest: null });
const opts = { removeOnComplete: true };
const node = (flow) => (x) => ({ name: "node", queueName: "flows", data: { flow, x }, opts });
const flowJob = (nodes) => (flow) => ({
  name: "fan_in",
  queueName: "flows",
  data: { flow },
  opts,
  children: harness.range(nodes).map(node(flow)),
});

async function run(job) {
  if (job.name === "node") return harness.runNode(job.data.flow, job.data.x);
  return harness.runFanIn(job.data.flow, async () => Object.values(await job.getChildrenValues()));
}

if (harness.STEP === "produce") {
  const producer = new FlowProducer({ connection });
  await producer.waitUntilReady();
  await harness.produceChunks((flows, nodes) => producer.addBulk(flows.map(flowJob(nodes))));
} else {
  const recovery = harness.RECOVERY && {
    lockDuration: harness.RECOVERY * 1000,
    stalledInterval: 1000,
    maxStalledCount: 1000,
  };
  const worker = new Worker("flows", run, { connection, concurrency: 100, ...recovery });
  worker.on("error", (error) => console.error(error));
  await worker.waitUntilReady();
  harness.ready();
}
