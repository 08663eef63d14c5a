// verbena-perf in its two halves, --server and --client, both on this host.
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>

#include "common/clock.h"
#include "common/tcp.h"
#include "tools/result_document.h"
#include "tools/run_tool.h"

namespace verbena::tools {
namespace {

std::string make_command(const std::string& fault, const std::string& arguments, int limit_s = 240) {
  return "SAMPLE_FAULT=" + fault + " timeout -s KILL " + std::to_string(limit_s) + " " + VERBENA_PERF +
         " --plugin " + SAMPLE_PLUGIN + " " + arguments;
}

// A started server, and the port that it told.
class Server {
 public:
  explicit Server(const std::string& arguments, const std::string& fault = "")
      : pipe_(popen(("exec 2>&1; exec " + make_command_words(fault, arguments)).c_str(), "r")) {
    int port = 0;
    if (pipe_ != nullptr && std::fscanf(pipe_, "# waiting for a client at port %d", &port) == 1) {
      port_ = static_cast<uint16_t>(port);
    }
  }
  ~Server() {
    if (pipe_ != nullptr) finish();
  }

  uint16_t port() const { return port_; }

  ToolRun finish() {
    ToolRun run = read_tool(pipe_);
    pipe_ = nullptr;
    return run;
  }

 private:
  static std::string make_command_words(const std::string& fault, const std::string& arguments) {
    return "env " + make_command(fault, "--server --port 0 " + arguments);
  }

  std::FILE* pipe_;
  uint16_t port_ = 0;
};

ToolRun run_client(const Server& server, const std::string& arguments, const std::string& fault = "") {
  return run_tool(
      make_command(fault, "--client localhost --port " + std::to_string(server.port()) + " " + arguments));
}

void expect_told(const ToolRun& run, int status, const std::string& words) {
  EXPECT_EQ(run.status, status) << run.output;
  EXPECT_NE(run.output.find(words), std::string::npos) << run.output;
}

TEST(TwoHosts, BothSeeTheSameRun) {
  Server server("--json");
  const ToolRun client = run_client(server, "--json --sizes 8:64k --factor 64 --iters 20");
  const ToolRun served = server.finish();
  EXPECT_EQ(client.status, 0) << client.output;
  EXPECT_EQ(served.status, 0) << served.output;
  const auto document = parse_document(client.output);
  ASSERT_TRUE(document.is_object()) << client.output;
  const auto rows = list_rows(document);
  EXPECT_EQ(rows, list_rows(parse_document(served.output))) << served.output;
  EXPECT_EQ(rows.size(), 4U);
  EXPECT_EQ(document["details"]["wrong_bytes"], 0);
  EXPECT_GT(rows[0]["bandwidth_GBps"].get<double>(), 0);
}

TEST(TwoHosts, TheClientGivesTheWorkload) {
  Server server("--csv");
  const ToolRun client =
      run_client(server, "--size 4k --iters 10 --abi 7 --protocol ll --window 2 --user-buffer --csv");
  expect_told(client, 0, "verbena,4096,direct,10,");
  expect_told(server.finish(), 0, "verbena,4096,direct,10,");
  expect_told(run_tool(make_command("", "--server --size 4k")), 2, "--size=4k: belongs to the client");
}

TEST(TwoHosts, WrongBytesAreBothSidesFailure) {
  Server server("", "flip");
  EXPECT_EQ(run_client(server, "--size 4k --iters 20").status, 1);
  EXPECT_EQ(server.finish().status, 1);
}

TEST(TwoHosts, AFailureIsToldOnBothSides) {
  Server server("", "error");
  expect_told(run_client(server, "--size 4k --iters 20"), 1, "the server's worker in");
  expect_told(server.finish(), 1, "irecv failed: ncclRemoteError");
  Server crashing("", "crash");
  expect_told(run_client(crashing, "--size 4k --iters 20"), 1, "killed by signal 9");
  expect_told(crashing.finish(), 1, "killed by signal 9");
}

// On a busy machine a client is gone before it has said anything: then with more time.
TEST(TwoHosts, OneThatVanishesIsNamed) {
  for (int limit_s = 1;; limit_s *= 2) {
    Server server("");
    const std::string port = std::to_string(server.port());
    const ToolRun client =
        run_tool(make_command("", "--size 4k --iters 100000000 --client localhost --port " + port, limit_s));
    EXPECT_EQ(client.status, 128 + SIGKILL);
    const ToolRun served = server.finish();
    const char* const last =
        "the client's worker in \"latency, warm-up, 4K B\": the connection to the process was closed";
    if (served.output.find(last) == std::string::npos && limit_s < 32) continue;
    expect_told(served, 1, last);
    return;
  }
}

TEST(TwoHosts, NobodyThere) {
  expect_told(run_tool(make_command("", "--server --port 0 --wait 0.2")), 1,
              "no connection: a client was expected at port");
  const std::string port = [] { return std::to_string(TcpListener(0).port()); }();
  expect_told(run_tool(make_command("", "--client localhost --wait 0.2 --port ") + port), 1,
              "no connection to localhost port " + port + ": Connection refused");
  expect_told(run_tool(make_command("", "--client no.such.host.invalid")), 1, "host no.such.host.invalid:");
}

// A caller of the test's own: says one line, hears one.
std::string ask(const Server& server, const std::string& line) {
  const int64_t deadline_ns = deadline_after_s(20);
  TcpConnection connection = connect_tcp("localhost", server.port(), deadline_ns);
  connection.channel.send_line(line, deadline_ns);
  return connection.channel.receive_line(deadline_ns).line;
}

TEST(TwoHosts, StrangersAreTurnedAway) {
  Server server("");
  EXPECT_EQ(ask(server, "GET / HTTP/1.1"), "");
  EXPECT_EQ(ask(server, "{}"), "");
  EXPECT_EQ(ask(server, R"({"tool":"verbena-perf","protocol":"one"})"), "");
  EXPECT_EQ(ask(server, R"({"tool":"verbena-perf","protocol":1,"release":[]})"), "");
  EXPECT_EQ(run_client(server, "--size 4k --iters 10").status, 0);
  expect_told(server.finish(), 0, "because the other program is not verbena-perf");
}

TEST(TwoHosts, AnotherReleaseIsRefused) {
  Server server("");
  const std::string answer = ask(server, R"({"tool":"verbena-perf","protocol":99,"release":"9.9"})");
  EXPECT_NE(answer.find("the client is release 9.9 (protocol 99)"), std::string::npos) << answer;
  expect_told(server.finish(), 1, "Use the same release on both hosts");
}

TEST(TwoHosts, AClientSetsNothingButTheWorkload) {
  for (const char* argument : {"--plugin=/tmp/other.so", "--window=9", "--sizes=8:1", "--json=true"}) {
    Server server("");
    const nlohmann::json greeting{{"tool", "verbena-perf"}, {"protocol", 1}, {"workload", {argument}}};
    EXPECT_NE(ask(server, greeting.dump()).find("the client's options: "), std::string::npos) << argument;
    expect_told(server.finish(), 1, "refused: the client's options: ");
  }
}

TEST(TwoHosts, AClientDoesNotControlTheServersTerminal) {
  Server server("");
  ask(server, R"({"tool":"verbena-perf","protocol":1,"workload":["--no-\u001b]0;such\u0007\u001b[2J"]})");
  const ToolRun served = server.finish();
  EXPECT_EQ(served.output.find('\x1b'), std::string::npos) << served.output;
  expect_told(served, 1, "--no-?]0;such??[2J");
}

TEST(TwoHosts, AServerThatRefusesEndsTheClient) {
  TcpListener listener(0);
  std::FILE* const client =
      popen(("exec 2>&1; " + make_command("", "--client localhost --port " + std::to_string(listener.port())))
                .c_str(),
            "r");
  auto connection = listener.accept(deadline_after_s(20));
  ASSERT_TRUE(connection);
  connection->channel.send_line(R"({"tool":"verbena-perf","protocol":1,"error":"too tired"})",
                                deadline_after_s(20));
  expect_told(read_tool(client), 1, "the server refuses: too tired");
}

}  // namespace
}  // namespace verbena::tools
