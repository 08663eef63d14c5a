#include "protocol/datagram/simulation/fabric.h"

#include <utility>

namespace verbena::protocol::datagram::sim {
namespace {

uint32_t hash_path(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9;
  return static_cast<uint32_t>(x >> 32);
}

}  // namespace

Fabric::Fabric(const FabricShape& shape, const FabricTemper& temper, uint64_t seed, EventQueue& events,
               Receiver receiver, uint32_t event_kind)
    : shape_(shape),
      temper_(temper),
      random_(seed),
      events_(events),
      receiver_(std::move(receiver)),
      kind_(event_kind),
      hosts_(shape.hosts()),
      leaves_(shape.leaves_per_pod * shape.pods),
      plane_ports_(2 * hosts_ + 2 * leaves_ * shape.spines +
                   2 * shape.pods * shape.spines * shape.cores_per_spine),
      ns_per_byte_(8 / shape.gigabits),
      ports_(size_t{plane_ports_} * shape.planes) {}

// Of equal ports, by a hash; not of those that are known to lead nowhere.
uint32_t Fabric::pick_up(const Parcel& parcel, uint32_t first_port, uint32_t count, uint32_t salt) {
  const uint64_t key = (uint64_t{parcel.source} << 32 | parcel.target) * 0x9E3779B97F4A7C15 +
                       (uint64_t{salt} << 32 | parcel.label) * 0xD6E8FEB86659FD93;
  uint32_t at = hash_path(key) % count;
  for (uint32_t tries = 0; tries < count && ports_[first_port + at].is_avoided; ++tries)
    at = (at + 1) % count;
  return first_port + at;
}

// hops: how many ports it has been through. Up as far as it must, then down.
uint32_t Fabric::choose(Parcel& parcel) {
  const uint32_t plane = parcel.plane, from = leaf_of(parcel.source), to = leaf_of(parcel.target);
  if (parcel.hops == 0) return host_up(plane, parcel.source);
  if (from == to) return host_down(plane, parcel.target);
  const uint32_t pod = pod_of(from), target_pod = pod_of(to);
  const uint32_t up = pick_up(parcel, leaf_up(plane, from, 0), shape_.spines, from);
  if (parcel.hops == 1) return up;
  const uint32_t spine = up - leaf_up(plane, from, 0);
  if (pod == target_pod)
    return parcel.hops == 2 ? spine_down(plane, to, spine) : host_down(plane, parcel.target);
  const uint32_t core_port = pick_up(parcel, spine_up(plane, pod, spine, 0), shape_.cores_per_spine,
                                     leaves_ + pod * shape_.spines + spine);
  if (parcel.hops == 2) return core_port;
  const uint32_t core = core_port - spine_up(plane, pod, spine, 0);
  if (parcel.hops == 3) return core_down(plane, target_pod, spine, core);
  return parcel.hops == 4 ? spine_down(plane, to, spine) : host_down(plane, parcel.target);
}

// False: it is gone.
bool Fabric::enqueue(Port& port, Parcel& parcel, int64_t now_ns, int64_t* leaves_ns) {
  if (port.is_dead) {
    ++swallowed_;
    return false;
  }
  const auto full_ns =
      static_cast<int64_t>(static_cast<double>(packet_ns(shape_.full_bytes)) * port.slowness);
  const int64_t waits_ns = port.busy_until_ns > now_ns ? port.busy_until_ns - now_ns : 0;
  const auto queue = static_cast<uint32_t>(waits_ns / full_ns);
  if (parcel.hops != 0) {
    if (queue >= shape_.buffer_packets && !shape_.is_lossless) {
      ++dropped_;
      return false;
    }
    if (shape_.mark_packets != 0 && queue >= shape_.mark_packets) parcel.is_marked = true;
    if (queue > port.longest) port.longest = queue;
  }
  port.busy_until_ns =
      now_ns + waits_ns + static_cast<int64_t>(static_cast<double>(packet_ns(parcel.bytes)) * port.slowness);
  *leaves_ns = port.busy_until_ns;
  return true;
}

int64_t Fabric::send(const Parcel& sent, int64_t now_ns) {
  Parcel parcel = sent;
  parcel.hops = 0;
  parcel.is_marked = parcel.is_damaged = false;
  Port& port = ports_[host_up(parcel.plane, parcel.source)];
  int64_t leaves_ns = now_ns;
  const bool is_there = enqueue(port, parcel, now_ns, &leaves_ns);
  const bool is_lost = is_there && temper_.loses != 0 && random_.next() % 1'000'000 < temper_.loses;
  if (!is_there || is_lost) {
    lost_ += is_lost ? 1 : 0;
    receiver_.discard(parcel.owner);
    return leaves_ns;
  }
  if (temper_.damages != 0 && random_.next() % 1'000'000 < temper_.damages) parcel.is_damaged = true;
  parcel.hops = 1;
  const int64_t at_ns = leaves_ns + shape_.host_wire_ns / 2 + shape_.wire_ns;
  const auto put = [&](const Parcel& one) {
    uint32_t index = 0;
    if (free_.empty()) {
      index = static_cast<uint32_t>(parcels_.size());
      parcels_.push_back(one);
    } else {
      index = free_.back();
      free_.pop_back();
      parcels_[index] = one;
    }
    events_.add({at_ns, kind_ << 28, index});
  };
  if (temper_.doubles != 0 && random_.next() % 1'000'000 < temper_.doubles) {
    Parcel copy = parcel;
    copy.owner = receiver_.duplicate(parcel.owner);
    put(copy);
  }
  put(parcel);
  return leaves_ns;
}

int64_t Fabric::busy_until_ns(uint32_t host, uint32_t plane) const {
  return ports_[host_up(plane, host)].busy_until_ns;
}

void Fabric::on_event(const Event& event) {
  if ((event.kind_and_place & 1) != 0) {
    arrive(event.payload, event.at_ns);
  } else {
    forward(event.payload, event.at_ns);
  }
}

void Fabric::forward(uint32_t index, int64_t now_ns) {
  Parcel& parcel = parcels_[index];
  const uint32_t port_index = choose(parcel);
  Port& port = ports_[port_index];
  const bool is_last =
      port_index >= host_down(parcel.plane, 0) && port_index < host_down(parcel.plane, 0) + hosts_;
  int64_t leaves_ns = 0;
  if (!enqueue(port, parcel, now_ns, &leaves_ns)) {
    receiver_.discard(parcel.owner);
    free_.push_back(index);
    return;
  }
  if (!is_last && port.longest > longest_core_) longest_core_ = port.longest;
  ++parcel.hops;
  int64_t at_ns = leaves_ns + shape_.wire_ns;
  if (parcel.hops == 2 && !is_last) at_ns += shape_.skew_ns * (port_index % shape_.spines);
  if (is_last) {
    at_ns += shape_.host_wire_ns / 2;
    if (temper_.delay_packets != 0)
      at_ns +=
          static_cast<int64_t>(random_.next() % (temper_.delay_packets + 1)) * packet_ns(shape_.full_bytes);
  }
  events_.add({at_ns, kind_ << 28 | (is_last ? 1U : 0U), index});
}

void Fabric::arrive(uint32_t index, int64_t) {
  const Parcel parcel = parcels_[index];
  free_.push_back(index);
  receiver_.deliver(parcel);
}

void Fabric::set_spine(uint32_t plane, uint32_t pod, uint32_t spine, bool is_dead, bool is_rerouted) {
  for (uint32_t l = 0; l < shape_.leaves_per_pod; ++l)
    set_leaf_link(plane, pod * shape_.leaves_per_pod + l, spine, is_dead, is_rerouted);
}
void Fabric::set_leaf_link(uint32_t plane, uint32_t leaf, uint32_t spine, bool is_dead, bool is_rerouted) {
  for (Port* port : {&ports_[leaf_up(plane, leaf, spine)], &ports_[spine_down(plane, leaf, spine)]}) {
    port->is_dead = is_dead;
    port->is_avoided = is_dead && is_rerouted;
  }
}
void Fabric::slow_leaf_link(uint32_t plane, uint32_t leaf, uint32_t spine, double factor) {
  for (Port* port : {&ports_[leaf_up(plane, leaf, spine)], &ports_[spine_down(plane, leaf, spine)]})
    port->slowness = static_cast<float>(factor);
}
void Fabric::set_host(uint32_t plane, uint32_t host, bool is_dead) {
  ports_[host_up(plane, host)].is_dead = ports_[host_down(plane, host)].is_dead = is_dead;
}

uint32_t Fabric::take_longest_queue(uint32_t host) {
  uint32_t longest = 0;
  for (uint32_t plane = 0; plane < shape_.planes; ++plane)
    longest = std::max(longest, std::exchange(ports_[host_down(plane, host)].longest, 0));
  return longest;
}

}  // namespace verbena::protocol::datagram::sim
