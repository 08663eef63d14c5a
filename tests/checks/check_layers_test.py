"""Shows that tools/check_layers goes red on every kind of violation, and stays green on what is allowed."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers"

# A small tree that keeps every rule, among them constructs that only look like a violation.
CLEAN_TREE = {
    "include/verbena/README.md": "public headers\n",
    "include/verbena/abi.h": "#pragma once\n",
    "include/verbena/device/README.md": "device headers\n",
    "include/verbena/device/memory_order.cuh": "#pragma once\ninline void fence() { asm volatile(\"membar.sys;\"); }\n",
    "plugin/base/README.md": "base\n",
    "plugin/base/log.h": "#pragma once\n",
    "plugin/base/log.cc": '#include "base/log.h"\nvoid log() { fprintf(stderr, "x"); }\n',
    "plugin/base/parameters.cc": 'const char* read() { return std::getenv("VERBENA_HCA"); }\n',
    "plugin/crypto/README.md": "crypto\n",
    "plugin/crypto/libcrypto.h": "#pragma once\n#include <openssl/hmac.h>\n",
    "plugin/protocol/README.md": "protocol\n",
    "plugin/protocol/wire.h": '#pragma once\n#include <cstdint>\n#include "base/log.h"\n#include "verbena/abi.h"\n',
    "plugin/verbs/README.md": "verbs\n",
    "plugin/verbs/device.h": "#pragma once\n#include <infiniband/verbs.h>\n",
    "plugin/transport/README.md": "transport\n",
    "plugin/transport/setup/README.md": "setup\n",
    "plugin/transport/setup/acceptor.h": "#pragma once\n",
    "plugin/transport/setup/acceptor.cc": '#include "transport/t.h"\n',
    "plugin/transport/link/README.md": "link\n",
    "plugin/transport/link/link.h": "#pragma once\n",
    "plugin/transport/sender.cc":
        '#include "protocol/wire.h"\n#include "verbs/device.h"\n'
        '// abort() and printf("x") in a comment, #include "nccl/x.h" too\n'
        'const char* kText = "call getenv(1) or exit(0)";\n'
        'void f(Queue& q) { q.abort(); q->exit(1); snprintf(b, 1, "x"); engine::terminate(); static_assert(1); }\n',
    "plugin/softverbs/README.md": "softverbs\n",
    "plugin/softverbs/shared/config.cc": '#include <infiniband/verbs.h>\nconst char* c() { return getenv("X"); }\n',
    "device/put_queue/README.md": "put_queue\n",
    "device/put_queue/put_queue.h": "#pragma once\n",
    "device/proxy/README.md": "proxy\n",
    "device/proxy/proxy.h": '#pragma once\n#include "device/put_queue/put_queue.h"\n',
    "device/symm/README.md": "symm\n",
    "device/symm/window.cc": '#include "base/log.h"\n#include "verbena/abi.h"\n#include "device/proxy/proxy.h"\n',
    "plugin/bootstrap/README.md": "bootstrap\n",
    "plugin/bootstrap/ranks.h": "#pragma once\n",
    "device/api/README.md": "api\n",
    "device/api/contexts.h": "#pragma once\n",
    "tools/perf/README.md": "perf\n",
    "tools/perf/main.cc":
        '#include "common/table.h"\n#include "transport/../protocol/wire.h"\nint main() { printf("x"); exit(0); }\n',
    "tools/perf/options.h": "#pragma once\n",
    "tools/common/README.md": "common\n",
    "tools/common/table.h": "#pragma once\n",
    "tools/report/README.md": "report\n",
    "tools/report/report.h": '#pragma once\n#include "common/table.h"\n',
    "tools/verbena-perf/README.md": "verbena-perf\n",
    "tools/verbena-perf/main.cc": '#include "common/table.h"\n',
    "plugin/base/long.cc": "\n" * 2000,
    "plugin/README.md": "line\n" * 200,
    "tests/base/log_test.cc": '#include "base/log.h"\n',
    "tests/base/support/capture.h": "#pragma once\n",
    "tests/base/support/capture.cc": '#include "support/capture.h"\n',
    "plugin/softverbs/shared/README.md": "shared\n",
    "plugin/softverbs/engine/README.md": "engine\n",
    "plugin/softverbs/engine/e.h": "#pragma once\n",
    "plugin/softverbs/shared/copy.cc": 'void copy() { asm volatile("rep movsb"); }\n',
}

# name: (path, text, rule that must report it)
VIOLATIONS = {
    "base includes transport": ("plugin/base/a.cc", '#include "transport/t.h"\n', "layer"),
    "softverbs' shared state includes its engine": ("plugin/softverbs/shared/a.cc", '#include "softverbs/engine/e.h"\n', "layer"),
    "the link includes the setup": ("plugin/transport/link/a.cc", '#include "transport/setup/acceptor.h"\n', "layer"),
    "a connection includes the setup": ("plugin/transport/a.cc", '#include "transport/setup/acceptor.h"\n', "layer"),
    "the link includes a connection": ("plugin/transport/link/a.cc", '#include "transport/t.h"\n', "layer"),
    "protocol includes verbs": ("plugin/protocol/a.cc", '#include "verbs/device.h"\n', "layer"),
    "verbs includes protocol": ("plugin/verbs/a.cc", '#include "protocol/wire.h"\n', "layer"),
    "angle brackets do not help": ("device/a.cc", "#include <verbena/none.h>\n", "unresolved"),
    "softverbs includes base": ("plugin/softverbs/a.cc", '#include "base/log.h"\n', "layer"),
    "abi includes base": ("plugin/abi/a.h", '#pragma once\n#include "base/log.h"\n', "layer"),
    "softverbs includes the public headers": ("plugin/softverbs/a.cc", '#include "verbena/abi.h"\n', "layer"),
    "plugin includes device": ("plugin/transport/a.cc", '#include "../../device/put_queue/put_queue.h"\n', "layer"),
    "device includes the transport": ("device/symm/a.cc", '#include "transport/t.h"\n', "layer"),
    "public header includes plugin": ("include/verbena/b.h", '#pragma once\n#include "../../plugin/base/log.h"\n', "layer"),
    "new layer": ("plugin/magic/a.cc", "int x;\n", "layer"),
    "new layer of device": ("device/magic/a.cc", "int x;\n", "layer"),
    "device's own folder": ("device/a.cc", "int x;\n", "layer"),
    "put queue includes the proxy": ("device/put_queue/a.cc", '#include "device/proxy/proxy.h"\n', "layer"),
    "bootstrap includes verbs": ("plugin/bootstrap/a.cc", '#include "verbs/device.h"\n', "layer"),
    "proxy includes symmetric memory": ("device/proxy/a.cc", '#include "device/symm/s.h"\n', "layer"),
    "symmetric memory includes the C API": ("device/symm/a.cc", '#include "device/api/contexts.h"\n', "layer"),
    "backends include symmetric memory": ("device/backends/a.cc", '#include "device/symm/s.h"\n', "layer"),
    "bitcode includes the bootstrap": ("device/bitcode/a.cc", '#include "bootstrap/ranks.h"\n', "layer"),
    "tool includes another's header": ("tools/info/a.cc", '#include "perf/options.h"\n', "layer"),
    "tool includes a part of another": ("tools/info/a.cc", '#include "report/report.h"\n', "layer"),
    "common includes a tool's header": ("tools/common/a.cc", '#include "perf/options.h"\n', "layer"),
    "report includes its tool's header": ("tools/report/a.cc", '#include "verbena-perf/p.h"\n', "layer"),
    "tool includes device": ("tools/perf/a.cc", '#include "../../device/api/contexts.h"\n', "layer"),
    "verbs' header elsewhere": ("plugin/transport/a.cc", "#include <infiniband/verbs.h>\n", "verbs-header"),
    "hwloc elsewhere": ("plugin/verbs/a.cc", "#include <hwloc.h>\n", "hwloc-header"),
    "OpenSSL elsewhere": ("plugin/transport/a.cc", "#include <openssl/hmac.h>\n", "openssl-header"),
    "OpenSSL in base": ("plugin/base/hmac.h", "#pragma once\n#include <openssl/evp.h>\n", "openssl-header"),
    "CUDA headers in the plugin": ("plugin/base/a.cc", "#include <cuda_runtime.h>\n", "cuda-header"),
    "a clock in protocol": ("plugin/protocol/a.cc", "#include <chrono>\n", "pure-protocol"),
    "getenv elsewhere": ("plugin/transport/a.cc", 'auto x = ::getenv("A");\n', "environment"),
    "setenv": ("plugin/verbs/a.cc", 'void f() { setenv("A", "1", 1); }\n', "environment"),
    "printf": ("plugin/nccl/a.cc", 'void f() { printf("a"); }\n', "stream"),
    "std::cerr": ("plugin/nccl/a.cc", "void f() { std::cerr << 1; }\n", "stream"),
    "write to descriptor 2": ("plugin/nccl/a.cc", "void f() { write(2, a, 1); }\n", "stream"),
    "fputs in softverbs": ("plugin/softverbs/a.cc", 'void f() { fputs("a", stderr); }\n', "stream"),
    "abort": ("plugin/transport/a.cc", "void f() { std::abort(); }\n", "process-end"),
    "exit": ("plugin/softverbs/a.cc", "void f() { if (x) exit(1); }\n", "process-end"),
    "assert": ("plugin/base/a.cc", "void f() { assert(x); }\n", "process-end"),
    "assembly": ("device/a.cuh", '#pragma once\nvoid f() { asm volatile("ld.acquire"); }\n', "assembly"),
    "assembly elsewhere in softverbs": ("plugin/softverbs/a.cc", 'void f() { asm(""); }\n', "assembly"),
    "include that is not there": ("plugin/base/a.cc", '#include "base/none.h"\n', "unresolved"),
    "test's include that is not there": ("tests/base/a.cc", '#include "base/none.h"\n', "unresolved"),
    "header without a guard": ("plugin/base/a.h", "int f();\n", "guard"),
    "code after a string with a quote": ("plugin/base/a.cc", 'auto a = "\\""; auto b = getenv("x");\n', "environment"),
    "code after a digit separator": ("plugin/base/a.cc", "int a = 1'000; int b = f(abort(), 2'000);\n", "process-end"),
    "folder without a README": ("plugin/topology/a.cc", "int x;\n", "readme"),
}


def plant(root, files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


class CheckLayersTest(unittest.TestCase):
    def run_checker(self, extra):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            plant(root, CLEAN_TREE)
            plant(root, {"plugin/transport/t.h": "#pragma once\n", "device/symm/s.h": "#pragma once\n",
                         "tools/verbena-perf/p.h": "#pragma once\n"})
            plant(root, extra)
            return subprocess.run([sys.executable, str(CHECKER), "--root", str(root)], capture_output=True, text=True,
                                  timeout=60, check=False)

    def test_clean_tree_is_green(self):
        result = self.run_checker({})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_empty_tree_is_red(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([sys.executable, str(CHECKER), "--root", folder], capture_output=True, text=True,
                                    timeout=60, check=False)
        self.assertEqual(result.returncode, 1, result.stdout)

    def test_each_violation_is_red(self):
        for name, (path, text, rule) in VIOLATIONS.items():
            with self.subTest(name):
                result = self.run_checker({path: text})
                self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
                reported = [line for line in result.stdout.splitlines() if f" {rule}: " in line]
                self.assertTrue(any(line.startswith(path.rsplit("/", 1)[0]) for line in reported), result.stdout)

    def test_line_number_survives_comments(self):
        result = self.run_checker({"plugin/base/a.cc": '/* one\n two */\nauto s = R"(a\nb)";\nvoid f() { abort(); }\n'})
        self.assertIn("plugin/base/a.cc:5: process-end:", result.stdout)


if __name__ == "__main__":
    unittest.main()
