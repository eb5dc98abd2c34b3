"""What memory is left is read as the kernel writes it: for both versions of control groups."""

import pytest

from holdfast.linux.control_groups import groups
from holdfast.linux.host_memory import Available, available, oom_kills
from holdfast.linux.supply import usable_cores

V1 = "31 23 0:28 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2 = "41 31 0:38 {root} /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"


@pytest.fixture
def host(tmp_path):
    """A machine with 8 MB left, to write control groups to: `host(mount, own group, files)`."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def make(mount, own, files):
        write({"proc/self/mountinfo": f"{CPU}\n{mount}\n", "proc/self/cgroup": own, **files})
        return tmp_path

    write({
        "proc/meminfo": "MemTotal:  90000 kB\nMemAvailable:     8000 kB\nHugePages_Total:  0\n",
        "proc/vmstat": "nr_free_pages 5\noom_kill 7\n",
    })  # fmt: skip
    return make


def test_a_machine_without_control_groups_gives_what_it_has(host):
    root = host(CPU, "", {})
    assert available(root) == Available(8_192_000, "this machine's memory")
    assert oom_kills(root) == 7


def test_the_tightest_group_around_a_process_counts_and_so_does_the_cache_that_can_go(host):
    root = host(V2.format(root="/"), "0::/outer/inner\n", {
        "sys/fs/cgroup/cgroup.procs": "1\n",
        "sys/fs/cgroup/outer/memory.max": "5000000\n",
        "sys/fs/cgroup/outer/memory.current": "4000000\n",
        "sys/fs/cgroup/outer/memory.stat": "anon 3\ninactive_file 500000\nactive_file 9\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/inner/memory.current": "2000000\n",
        "sys/fs/cgroup/outer/inner/memory.events": "low 0\noom 9\noom_kill 3\n",
        "sys/fs/cgroup/outer/memory.events": "low 0\noom 9\noom_kill 5\n",
    })  # fmt: skip
    left = available(root)
    assert left.size_bytes == 1_500_000
    assert left.limit == f"the 5.0 MB that {root}/sys/fs/cgroup/outer allows"
    assert oom_kills(root) == 3


def test_version_1_is_read_too_and_its_cache_is_that_of_the_whole_group(host):
    root = host(V1.format(root="/"), "9:name=systemd:/\n4:cpu,memory:/box\n0::/\n", {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "77\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "3000000\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "2500000\n",
        "sys/fs/cgroup/memory/box/memory.stat": "inactive_file 1\ntotal_inactive_file 250000\n",
        "sys/fs/cgroup/memory/box/memory.oom_control": "under_oom 0\noom_kill 2\n",
    })  # fmt: skip
    assert available(root).size_bytes == 750_000
    assert oom_kills(root) == 2


@pytest.mark.parametrize(
    ("mounted", "own", "found"),
    [
        ("/docker/abc", "/docker/abc/job", ["job", "."]),
        ("/docker/abc", "/docker/abc", ["."]),
        ("/docker/abc", "/elsewhere", ["."]),
        ("/", "/a/b", ["a/b", "a", "."]),
    ],
)
def test_a_container_sees_its_own_part_of_the_tree(host, mounted, own, found):
    root = host(V2.format(root=mounted), f"0::{own}\n", {})
    paths = [group.relative_to(root / "sys/fs/cgroup") for group in groups("memory", root)]
    assert [str(path) for path in paths] == found


def test_more_use_than_the_limit_leaves_nothing(host):
    root = host(V2.format(root="/"), "0::/\n", {
        "sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "150\n",
    })  # fmt: skip
    assert available(root).size_bytes == 0


@pytest.mark.parametrize(
    ("mount", "files", "cores"),
    [
        (V2, {}, 8),
        (V2, {"cpu.max": "max 100000", "box/cpu.max": "250000 100000"}, 2),
        (V2, {"cpu.max": "300000 100000", "box/cpu.max": "700000 100000"}, 3),
        (V2, {"box/cpu.max": "50000 100000"}, 1),
        (CPU, {"cpu/box/cpu.cfs_quota_us": "400000", "cpu/box/cpu.cfs_period_us": "100000"}, 4),
        (CPU, {"cpu/box/cpu.cfs_quota_us": "-1", "cpu/box/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_cores_are_those_that_the_tightest_group_leaves(host, monkeypatch, mount, files, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    own = "0::/box\n" if mount == V2 else "4:cpu:/box\n"
    root = host(mount.format(root="/"), own, {f"sys/fs/cgroup/{k}": v for k, v in files.items()})
    assert usable_cores(root) == cores
