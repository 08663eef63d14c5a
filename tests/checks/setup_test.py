"""Locks of tools/setup's folders: the script may lock a folder twice, and other scripts wait until it locks another folder or ends."""
import pathlib
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "tools" / "setup"
LIMIT_S = 30


class SetupTest(unittest.TestCase):
    def test_a_folder_is_locked_twice(self):
        text = SETUP.read_text()
        begin = text.index("folder_lock=")
        functions = text[begin:text.index("\n}\n", begin) + 3]
        with tempfile.TemporaryDirectory() as folder:
            script = functions + f"""
                set -u
                try() {{ flock --nonblock "$1" true && echo free || echo taken; }}
                lock_folder {folder}/a
                lock_folder {folder}/a
                try {folder}/a.lock
                lock_folder {folder}/b
                try {folder}/a.lock
                try {folder}/b.lock"""
            ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        self.assertEqual(ended.stdout.split(), ["taken", "free", "taken"])


if __name__ == "__main__":
    unittest.main()
