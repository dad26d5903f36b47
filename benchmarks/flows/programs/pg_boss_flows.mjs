// pg-boss: flow(), batches of 3,000, two workers for nodes in one process, LISTEN and NOTIFY for nodes.
// Jobs that wait for others are not notified, so the queue of fan-ins is polled at the shortest interval, and
// the resolver of flows runs at its shortest, once a second. With FLOW_RESOLVE=1 each worker process calls
// resolveFlow() all the time, and wakes the worker of fan-ins after a pass that resolved any.
// A flow passes no results: fan-ins get none.
import { PgBoss } from "pg-boss";
import * as harness from "./flow_harness.mjs";

const works = harness.STEP === "work";
const intervals = { flowIntervalSeconds: 1, superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 };
const boss = new PgBoss({
  connectionString: harness.URL_,
  useListenNotify: works,
  schedule: false,
  supervise: works,
  ...intervals,
});
boss.on("error", (error) => console.error(error));
await boss.start();

const flowJobs = (flow, nodes) => {
  const refs = harness.range(nodes).map(String);
  return [
    ...refs.map((ref, x) => ({ ref, name: "nodes", data: { flow, x } })),
    { ref: "fan_in", name: "fan_ins", data: { flow }, dependsOn: refs },
  ];
};

async function work() {
  const polling = { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 };
  const options = { batchSize: 3000, burstWhenBatchFull: true, ...polling };
  await boss.work("nodes", { ...options, localConcurrency: 2 }, async (jobs) => {
    await Promise.all(jobs.map((job) => harness.runNode(job.data.flow, job.data.x)));
  });
  const fanIns = await boss.work("fan_ins", options, async (jobs) => {
    await Promise.all(jobs.map((job) => harness.runFanIn(job.data.flow)));
  });
  harness.ready();
  if (process.env.FLOW_RESOLVE !== "1") return;
  boss.on("flow", () => boss.notifyWorker(fanIns));
  for (;;) {
    await boss.resolveFlow();
    await harness.sleep(10);
  }
}

if (harness.STEP === "prepare") {
  const recovery = harness.RECOVERY && { expireInSeconds: harness.RECOVERY, retryLimit: 1000, retryDelay: 0 };
  await boss.createQueue("nodes", { notify: true, ...recovery });
  await boss.createQueue("fan_ins", { ...recovery });
  process.exit(0);
} else if (harness.STEP === "produce") {
  await harness.produceChunks((flows, nodes) =>
    Promise.all(flows.map((flow) => boss.flow(flowJobs(flow, nodes))))
  );
} else await work();
