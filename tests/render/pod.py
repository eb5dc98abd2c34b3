"""A container of a rendered pod as Linux runs it, with this machine as its image.

It has a root file system that is read-only, the volumes of its pod, a user without rights, and
process 1 is its command. What the kubelet does around it is the test's.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

_ENTER = """
set -e
cd "$0"
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" root
cd root
chmod 755 root
mount -o remount,ro .
mount -t proc proc proc
mount --rbind /dev dev
user=$1
shift
while [ "$1" != -- ]; do
    if [ "$1" = tmpfs ]
    then mount -t tmpfs -o mode=1777 tmpfs ".$2"
    else mount --bind "$1" ".$2"
    fi
    shift 2
done
shift
exec chroot . setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all "$@"
"""


class Container:
    """A container that runs.

    Args:
        folder: An empty one for it.
        pod: The specification of the pod.
        container: That of the container.
        volumes: The folder of each volume that is not scratch.
        names: The address of each name that the pod looks up.
        around: A function that makes of a command one that runs on a host of its own.
        environment: What the kubelet adds to the container's environment.
    """

    def __init__(self, folder, pod, container, volumes, names=None, around=list, environment=None):
        folder.mkdir()
        for name in ("upper/etc", "work", "root"):
            (folder / name).mkdir(parents=True)
        known = {"localhost": "127.0.0.1", **(names or {})}
        lines = [f"{address} {name}\n" for name, address in known.items()]
        (folder / "upper/etc/hosts").write_text("".join(lines))
        mounts = []
        scratch = {each["name"] for each in pod["volumes"] if "emptyDir" in each}
        for mount in container["volumeMounts"]:
            path, name = mount["mountPath"], mount["name"]
            (folder / f"upper{path}").mkdir(parents=True, exist_ok=True)
            source = volumes.get(name, "tmpfs" if name in scratch else None)
            assert source, f"the test has no volume {name}"
            mounts += [str(source), path]
        user = str(pod["securityContext"]["runAsUser"])
        words = ["sh", "-c", _ENTER, str(folder), user, *mounts, "--", *container["command"]]
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *words]
        plain = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                around(isolated),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": path, **plain, **(environment or {})},
            )

    @property
    def output(self):
        """What it has printed."""
        return self._output.read_text(errors="replace")

    def wait(self, timeout_s):
        """Its exit status."""
        return self._process.wait(timeout_s)

    def request_end(self):
        """What the kubelet does first: SIGTERM for process 1."""
        children = f"/proc/{self._process.pid}/task/{self._process.pid}/children"
        (first,) = Path(children).read_text().split()
        os.kill(int(first), signal.SIGTERM)

    def close(self):
        """End it, and all of its processes."""
        self._process.kill()
        self._process.wait()
