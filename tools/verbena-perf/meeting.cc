#include "verbena-perf/meeting.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "base/text.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/self_path.h"

namespace verbena::tools::perf {
namespace {

// The version of the protocol between both sides: greetings, workers' lines, and the passes of a workload.
constexpr int kProtocolVersion = 1;
constexpr double kAnswerTimeoutS = 10;
constexpr const char* kTool = "verbena-perf";

nlohmann::json make_greeting() {
  return {{"tool", kTool}, {"protocol", kProtocolVersion}, {"release", release()}};
}

std::string describe_release(const nlohmann::json& greeting) {
  return base::disarmed(greeting.value("release", "?")) + " (protocol " +
         std::to_string(greeting.value("protocol", 0)) + ")";
}

void send_greeting(TcpConnection& connection, const nlohmann::json& greeting) {
  if (!connection.channel.send_line(greeting.dump(), deadline_after_s(kAnswerTimeoutS))) {
    throw ToolError(connection.peer +
                    ": the peer closed the connection or stopped reading before both sides agreed on a run");
  }
}

// Returns a discarded value if the message is not a greeting of this tool.
nlohmann::json receive_greeting(TcpConnection& connection) {
  const auto received = connection.channel.receive_line(deadline_after_s(kAnswerTimeoutS));
  nlohmann::json nothing(nlohmann::json::value_t::discarded);
  if (received.status != LineChannel::Status::kLine) return nothing;
  nlohmann::json greeting = nlohmann::json::parse(received.line, nullptr, false);
  const auto has = [&](const char* name, nlohmann::json::value_t type) {
    return !greeting.contains(name) || greeting[name].type() == type;
  };
  using Type = nlohmann::json::value_t;
  const bool is_ours = greeting.is_object() && greeting.value("tool", nlohmann::json()) == kTool &&
                       has("protocol", Type::number_unsigned) && has("release", Type::string) &&
                       has("token", Type::string) && has("error", Type::string);
  return is_ours ? greeting : nothing;
}

std::string make_token() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

void refuse(TcpConnection& connection, const std::string& why) {
  nlohmann::json answer = make_greeting();
  answer["error"] = why;
  send_greeting(connection, answer);
  throw ToolError("client " + connection.peer + " refused: " + base::disarmed(why));
}

// Checks the greeting of a client's first connection, and adopts its workload.
void admit(TcpConnection& connection, const nlohmann::json& greeting, PerfOptions& options) {
  if (greeting.value("protocol", 0) != kProtocolVersion) {
    refuse(connection, "the client is release " + describe_release(greeting) + ", the server " +
                           describe_release(make_greeting()) + ". Use the same release on both hosts");
  }
  const unsigned expected_run = options.run;
  try {
    adopt_workload(options, greeting.at("workload").get<std::vector<std::string>>());
  } catch (const std::exception& error) {
    refuse(connection, error.what());
  }
  if (options.run != expected_run) refuse(connection, "the server is in the middle of a comparison");
}

class Reception {
 public:
  Reception(TcpListener& listener, int64_t deadline_ns) : listener_(listener), deadline_ns_(deadline_ns) {}

  // Returns the next connection whose greeting is valid, and stores that in `greeting`.
  TcpConnection receive(const char* expected, nlohmann::json& greeting) {
    while (auto connection = listener_.accept(deadline_ns_)) {
      greeting = receive_greeting(*connection);
      if (!greeting.is_discarded()) return std::move(*connection);
      std::fprintf(
          stderr, "verbena-perf: connection from %s refused, because the other program is not verbena-perf\n",
          connection->peer.c_str());
    }
    throw ToolError(std::string("no connection: ") + expected + " was expected at port " +
                    std::to_string(listener_.port()));
  }

 private:
  TcpListener& listener_;
  int64_t deadline_ns_;
};

}  // namespace

Meeting await_client(TcpListener& listener, PerfOptions& options) {
  nlohmann::json greeting;
  TcpConnection drivers = Reception(listener, deadline_after_s(options.wait_s)).receive("a client", greeting);
  admit(drivers, greeting, options);
  nlohmann::json answer = make_greeting();
  const std::string token = make_token();
  answer["token"] = token;
  send_greeting(drivers, answer);
  Reception second(listener, deadline_after_s(kAnswerTimeoutS));
  for (;;) {
    TcpConnection workers = second.receive("the client's second connection", greeting);
    if (greeting.value("token", "") == token) return {std::move(drivers), std::move(workers)};
    std::fprintf(stderr, "verbena-perf: connection from %s refused, because the server is busy with %s\n",
                 workers.peer.c_str(), drivers.peer.c_str());
  }
}

Meeting call_server(const PerfOptions& options) {
  TcpConnection drivers = connect_tcp(options.client, options.port, deadline_after_s(options.wait_s));
  nlohmann::json greeting = make_greeting();
  greeting["workload"] = options.workload_arguments;
  send_greeting(drivers, greeting);
  const nlohmann::json answer = receive_greeting(drivers);
  if (answer.is_discarded()) {
    throw ToolError(
        drivers.peer +
        " is not a verbena-perf server, or is serving another client. No greeting arrived within " +
        format_seconds(kAnswerTimeoutS));
  }
  if (answer.contains("error")) {
    throw ToolError("the server refuses: " + base::disarmed(answer["error"].get<std::string>()));
  }
  greeting = make_greeting();
  greeting["token"] = answer.value("token", "");
  TcpConnection workers = connect_tcp(options.client, options.port, deadline_after_s(kAnswerTimeoutS));
  send_greeting(workers, greeting);
  return {std::move(drivers), std::move(workers)};
}

}  // namespace verbena::tools::perf
