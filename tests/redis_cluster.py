"""A private Redis Cluster of three primaries, for tests of `redis+cluster://` URLs."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping, Sequence

from dibs_conformance.servers.processes import (
    LOOPBACK,
    PORT_TRIES,
    Removable,
    ServerBinary,
    ServerUnavailable,
    find_redis,
    make,
    wait_until,
)
from dibs_conformance.servers.redis import IN_MEMORY, RedisServer

SLOTS = 16384
PRIMARIES = 3


class ClusterNode(RedisServer):
    """A node of the cluster. It needs two free ports: one for clients, and one 10,000 higher for nodes.

    With the option tls-cluster, clients and nodes connect to both ports with TLS.
    """

    def command(self) -> Sequence[str]:
        if self.options.get("tls-cluster") == "yes":
            self.options |= {"port": "0", "tls-port": str(self.port)}
        return super().command()

    def start(self) -> None:
        if self.port:
            super().start()
            return
        for _ in range(PORT_TRIES):
            self.port = find_free_port_pair()
            if self._start_once():
                return
        raise ServerUnavailable(f"a cluster node does not start: {self.last_output()}")

    @property
    def node_id(self) -> str:
        return str(self.execute("CLUSTER", "MYID"))


class RedisCluster(Removable):
    """Three primaries, each with a third of the hash slots, and then the replicas of the first ones."""

    def __init__(self, found: ServerBinary, replicas: int, options: Mapping[str, str]) -> None:
        self.version = found.version
        options = {**IN_MEMORY, "cluster-enabled": "yes", "cluster-node-timeout": "2000", **options}
        self.nodes = [ClusterNode(found, options) for _ in range(PRIMARIES + replicas)]
        # Nodes and clients connect to every node, so all nodes have the same password.
        for node in self.nodes:
            node.password = self.nodes[0].password

    @property
    def password(self) -> str:
        return self.nodes[0].password

    @property
    def url(self) -> str:
        first = self.nodes[0]
        return f"redis+cluster://:{first.password}@{LOOPBACK}:{first.port}"

    @property
    def url_of_all(self) -> str:
        """The URL with every node as a seed."""
        seeds = ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)
        return f"redis+cluster://:{self.password}@{seeds}"

    def slot_of(self, key: str) -> int:
        return int(self.nodes[-1].execute("CLUSTER", "KEYSLOT", key))

    def owner_of(self, slot: int, asked: ClusterNode | None = None) -> ClusterNode:
        """Return the node that has a slot, by the map of the node `asked`, by default the last one."""
        for first, last, primary, *_ in (asked or self.nodes[-1]).execute("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == primary[1])
        raise LookupError(f"no node has slot {slot}")

    def move_slot(self, slot: int, to: ClusterNode, step: Callable[[], None] = lambda: None) -> None:
        """Move a slot to another node while clients use it, one key at a time, as redis-cli's reshard does.

        Call `step` before each key and before the end. Raise RedisError if the target has a key already.
        """
        source = self.owner_of(slot)
        if source is to:
            return
        to.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", to.node_id)
        step()
        while keys := source.execute("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.execute("MIGRATE", LOOPBACK, to.port, "", 0, 5000, "AUTH", to.password, "KEYS", *keys)
            step()
        # The target first: otherwise no node would have the slot for a moment.
        for node in (to, source, *(one for one in self.nodes if one not in (to, source))):
            node.execute("CLUSTER", "SETSLOT", slot, "NODE", to.node_id)
        if not wait_until(lambda: all(self._knows_owner(node, slot, to) for node in self.nodes), 20):
            raise ServerUnavailable(f"the nodes do not agree that slot {slot} has moved to {to.port}")

    def _knows_owner(self, asked: ClusterNode, slot: int, owner: ClusterNode) -> bool:
        """Return whether a node knows that `owner` has a slot, and its latest configuration epoch.

        With an older epoch, a late message of the former owner would change the map of the node back.
        """
        epochs = [
            line.split()[6]
            for node in (asked, owner)
            for line in node.execute("CLUSTER", "NODES").splitlines()
            if line.startswith(owner.node_id)
        ]
        return len({*epochs}) == 1 and self.owner_of(slot, asked) is owner

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self._join_nodes()
        if not wait_until(self._is_formed, 20):
            raise ServerUnavailable("the nodes did not become a cluster in 20 s")
        for replica, primary in zip(self.nodes[PRIMARIES:], self.nodes, strict=False):
            replica.execute("CLUSTER", "REPLICATE", primary.node_id)
            if not wait_until(lambda: "master_link_status:up" in replica.execute("INFO", "replication"), 20):  # noqa: B023
                raise ServerUnavailable("a replica of the cluster did not connect to its primary in 20 s")

    def _join_nodes(self) -> None:
        bounds = [SLOTS * i // PRIMARIES for i in range(PRIMARIES + 1)]
        for i, node in enumerate(self.nodes):
            if i < PRIMARIES:
                node.execute("CLUSTER", "ADDSLOTS", *range(bounds[i], bounds[i + 1]))
            node.execute("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for node in self.nodes[1:]:
            self.nodes[0].execute("CLUSTER", "MEET", LOOPBACK, node.port)

    def _is_formed(self) -> bool:
        infos = [node.execute("CLUSTER", "INFO") for node in self.nodes]
        return all("cluster_state:ok" in info and f"known_nodes:{len(self.nodes)}" in info for info in infos)

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()


def start_redis_cluster(
    replicas: int = 0, *, found: ServerBinary | None = None, **options: str
) -> RedisCluster:
    """Start three primaries and up to three replicas, and join them to a cluster.

    `found` is the binary of the server, by default that of `find_redis`. `options` are settings of every
    node, such as `tls_cluster="yes"`. Raise ServerUnavailable on failure.
    """
    named = {name.replace("_", "-"): text for name, text in options.items()}
    cluster = RedisCluster(found or find_redis(), replicas, named)
    return make(cluster, cluster.start)


def find_free_port_pair() -> int:
    """Return a free port from 12,000 to 22,000, such that the port 10,000 higher is free, too.

    Few programs get ports below 32768, so both ports are likely to stay free.
    """
    for _ in range(200):
        port = random.randrange(12_000, 22_000)
        if _is_free(port) and _is_free(port + 10_000):
            return port
    raise ServerUnavailable("no pair of free ports for a cluster node")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
