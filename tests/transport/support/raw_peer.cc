#include "transport/support/raw_peer.h"

#include <bit>
#include <stdexcept>

namespace verbena::transport {

namespace {

void expect_soon(const std::function<bool()>& done, const char* what) {
  if (!poll_until(done, 10'000)) throw std::runtime_error(what);
}

protocol::Hello make_hello(const Nic& nic, uint64_t nonce, const Link& link, const ControlMemory& control) {
  protocol::Hello hello{};
  hello.header = protocol::make_header(sizeof(hello), nonce);
  hello.rails = static_cast<uint32_t>(nic.rails.size());
  hello.queue_pairs = link.queue_pairs();
  link.describe(hello.rail, hello.queue_pair);
  hello.traffic_class = -1;
  hello.control_address = control.address();
  for (uint32_t rail = 0; rail < hello.rails; ++rail) hello.control_keys[rail] = control.remote_key(rail);
  return hello;
}

Link make_link(const Nic& nic, std::span<verbs::SharedReceiveQueue* const> receive_queues) {
  Link::Options options;
  options.rails = nic.rails;
  options.queue_pairs = static_cast<uint32_t>(nic.rails.size());
  options.receive_queues = receive_queues;
  const std::vector<uint32_t> entries(options.queue_pairs, 256);
  if (!receive_queues.empty()) options.receive_entries = entries;
  options.inline_bytes = verbs::kInlineBytes;
  return take(Link::create(options), "a link");
}

}  // namespace

RawSender::RawSender(const Nic& nic, bool unpacks, AcceptedEnd* end)
    : memory_(nic, 1 << 20),
      link_(make_link(nic, {})),
      control_(take(ControlMemory::create(nic.rails), "control")) {
  protocol::Handle handle;
  auto listener = take(Listener::open(nic, &handle), "a listener");
  socket_ = take(base::Socket::start_connect(std::bit_cast<base::SocketAddress>(handle.address)), "a socket");
  expect_soon([&] { return take(socket_.finish_connect(), "a connection"); }, "connect");

  const auto hello = make_hello(nic, handle.header.nonce, link_, control_);
  AcceptOptions options;
  options.unpacks = unpacks;
  void* device_handle = nullptr;
  size_t sent = 0, received = 0;
  const auto poll = [&] { end->receiver = take(listener->poll(options, &device_handle), "a receiver"); };
  expect_soon([&] { return take(socket_.send_all(&hello, sizeof(hello), sent), "hello"); }, "hello");
  expect_soon(
      [&] {
        poll();
        return take(socket_.receive_exact(&welcome_, sizeof(welcome_), received), "welcome");
      },
      "welcome");
  if (!link_.connect(welcome_.rail, welcome_.queue_pair, welcome_.rail_of))
    throw std::runtime_error("connect");
  const protocol::Ready ready{protocol::make_header(sizeof(protocol::Ready), handle.header.nonce), 0, {}};
  sent = 0;
  expect_soon([&] { return take(socket_.send_all(&ready, sizeof(ready), sent), "ready"); }, "ready");
  expect_soon(
      [&] {
        poll();
        return end->receiver != nullptr;
      },
      "accept");
  end->handle = static_cast<const UnpackDeviceHandle*>(device_handle);
}

void RawSender::send(uint32_t imm, uint32_t length_bytes) {
  post({.opcode = verbs::Opcode::kSendImm, .imm = imm, .length = length_bytes});
}

void RawSender::write(uint32_t imm, uint64_t address, uint32_t remote_key, uint32_t length_bytes) {
  post({.opcode = verbs::Opcode::kWriteImm,
        .imm = imm,
        .length = length_bytes,
        .remote_key = remote_key,
        .remote = address});
}

void RawSender::post(verbs::WorkRequest request) {
  request.signaled = true;
  request.local = memory_.bytes().data();
  request.local_key = memory_.registration()->regions[0].local_key();
  if (!link_.pair(0).post(request)) throw std::runtime_error("post");
  link_.poll([](const verbs::Completion&, uint32_t) {});
}

RawReceiver::RawReceiver(const Nic& nic, uint32_t window, std::unique_ptr<Sender>* sender, bool stages) {
  pool_ = take(BouncePool::acquire(BouncePool::Kind::kHostPages), "a pool");
  auto* queue = take(pool_->reserve(*nic.rails[0], {window, window, window}), "pages").queue;
  verbs::SharedReceiveQueue* queues[] = {queue->shared()};
  link_ = make_link(nic, queues);
  auto listener = take(base::Listener::open_at(std::bit_cast<base::SocketAddress>(
                           protocol::AddressRecord{4, 0, 0, {127, 0, 0, 1}})),
                       "a listener");
  protocol::Handle handle{};
  handle.address = std::bit_cast<protocol::AddressRecord>(listener.address());
  handle.rails = handle.queue_pairs_per_rail = 1;
  protocol::seal_handle(handle, 0x1234);
  auto connector = take(Connector::start(nic, handle, -1), "a connector");
  size_t received = 0, sent = 0;
  expect_soon(
      [&] {
        static_cast<void>(connector->poll());
        if (!socket_) {
          if (auto accepted = take(listener.accept(), "a caller")) socket_ = std::move(*accepted);
        }
        return socket_ && take(socket_.receive_exact(&hello_, sizeof(hello_), received), "hello");
      },
      "hello");
  if (!link_.connect(hello_.rail, hello_.queue_pair, {{0}})) throw std::runtime_error("connect");
  protocol::Welcome welcome{};
  welcome.header = protocol::make_header(sizeof(welcome), 0x1234);
  welcome.rails = welcome.queue_pairs = welcome.joined_pairs = 1;
  welcome.page_bytes = pool_->page_bytes();
  welcome.window[0] = window;
  welcome.staging = stages;
  welcome.id = 1;
  welcome.staging_threshold_bytes = 1 << 20;
  link_.describe(welcome.rail, welcome.queue_pair);
  expect_soon([&] { return take(socket_.send_all(&welcome, sizeof(welcome), sent), "welcome"); }, "welcome");
  expect_soon([&] { return (*sender = take(connector->poll(), "a sender")) != nullptr; }, "sender");
}

}  // namespace verbena::transport
