"""The packages in a fresh root of this machine's release, from the archive that the machine itself uses.

usage: root_test.py BUILD

Exit status 77: there can be no such root here, for lack of a right, a program, or the archive.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import stage

LIMIT_S = 480


def skip(why):
    print(f"skipped: {why}")
    raise SystemExit(77)


def find_archive():
    """(URI, release) of the main part of the release that runs here."""
    release = stage.run("sh", "-c", '. /etc/os-release && echo "$VERSION_CODENAME"').strip()
    targets = stage.run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
                        "Created-By: Packages")
    for line in targets.splitlines():
        uri, suite, component = (line.split() + ["", ""])[:3]
        if suite == release and component == "main":
            return uri, release
    return skip(f"no source of apt has main of {release}")


def main():
    stage.leave_if_missing("mmdebstrap", "cpack", "dpkg-shlibdeps", "help2man", "apt-get")
    uri, release = find_archive()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        shared = root / "packages"
        for file in stage.make_packages(pathlib.Path(sys.argv[1]).resolve(), root / "made").values():
            shared.mkdir(exist_ok=True)
            shutil.copy(file, shared)
        shutil.copy(stage.PROJECT / "tests/packages/in_root.sh", shared)
        log = root / "log"
        # It cleans up after itself and ends with the last hook's status; a marker tells its failures from ours.
        command = ["timeout", "--kill-after=20", str(LIMIT_S), "mmdebstrap", "--variant=apt", "--format=null",
                   "--aptopt=Acquire::Retries 2", "--aptopt=Acquire::Languages none",
                   "--dpkgopt=force-unsafe-io", "--aptopt=Acquire::http::Timeout 20",
                   f"--customize-hook=copy-in {shared} /",
                   '--customize-hook=chroot "$1" /packages/in_root.sh; status=$?; '
                   f'cp "$1/packages/progress" {root}/progress 2>/dev/null; exit $status',
                   release, "/dev/null", uri]
        with log.open("w") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT,
                                  timeout=LIMIT_S + 60)
        said = log.read_text(errors="replace")
        progress = root / "progress"
        if not progress.exists():
            print(said[-2000:])
            skip(f"no root of {release} from {uri} (status {done.returncode})")
        print("\n".join(line for line in said.splitlines() if line.startswith("in root:")))
        if done.returncode != 0 or progress.read_text().strip() != "done":
            print(said[-4000:])
            raise SystemExit(1)


if __name__ == "__main__":
    main()
