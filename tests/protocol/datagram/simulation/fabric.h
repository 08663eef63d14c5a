// A network of switches in virtual time: hosts at leaves, leaves at spines, or leaves at the switches of
// their pod and those at a core. Each port sends in order at its rate and drops what its buffer does not
// hold. A packet's path is chosen at each switch by a hash of who sends to whom with which label. Links lose,
// double, delay and damage packets; links and switches die, and are routed around after a while, or never.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/datagram/simulation/event_queue.h"
#include "protocol/random.h"

namespace verbena::protocol::datagram::sim {

struct FabricShape {
  uint32_t hosts_per_leaf = 8;
  uint32_t leaves_per_pod = 16;
  uint32_t pods = 1;    // 1: two tiers
  uint32_t spines = 8;  // of a pod
  uint32_t cores_per_spine = 0;
  uint32_t planes = 1;             // rails: each is a network of its own
  double gigabits = 400;           // of every link
  uint32_t buffer_packets = 1200;  // of a port, of full packets
  uint32_t mark_packets = 0;       // longer queues mark packets; 0: never
  int64_t wire_ns = 500;           // of a hop, with its switch
  int64_t skew_ns = 0;             // each spine is so much farther away than the one before
  int64_t host_wire_ns = 1400;     // between a host's memory and its port, each way
  uint32_t full_bytes = 4078;      // of a full packet on the wire
  bool is_lossless = false;        // ports never drop, as if hosts were paused: for comparison

  uint32_t hosts() const { return hosts_per_leaf * leaves_per_pod * pods; }
};

// Of every link. Chances are in a million.
struct FabricTemper {
  uint32_t loses = 0, doubles = 0, damages = 0;
  uint32_t delay_packets = 0;  // a packet comes up to so many packet times late: order is lost
};

// What travels. `owner`: what it is to the hosts.
struct Parcel {
  uint32_t source, target;
  uint32_t label;  // chooses the path
  uint32_t bytes;
  uint32_t owner;
  uint8_t plane;
  bool is_marked, is_damaged;
  uint8_t hops;
};

class Fabric {
 public:
  // `deliver(parcel)`: it has arrived; it may be kept no longer than the call. `discard(owner)`: it never
  // will. `duplicate(owner)` -> the owner of a copy.
  struct Receiver {
    std::function<void(const Parcel&)> deliver;
    std::function<void(uint32_t owner)> discard;
    std::function<uint32_t(uint32_t owner)> duplicate;
  };
  Fabric(const FabricShape& shape, const FabricTemper& temper, uint64_t seed, EventQueue& events,
         Receiver receiver, uint32_t event_kind);

  const FabricShape& shape() const { return shape_; }
  void set_temper(const FabricTemper& temper) { temper_ = temper; }

  // From a host, at a time that is not over. When its port will have sent it.
  int64_t send(const Parcel& parcel, int64_t now_ns);
  // When a host's port has sent all that it was given.
  int64_t busy_until_ns(uint32_t host, uint32_t plane) const;
  int64_t packet_ns(uint32_t bytes) const { return static_cast<int64_t>(bytes * ns_per_byte_ + 0.5); }
  void on_event(const Event& event);

  // Faults. A dead part swallows packets until `rerouted`, then is no longer chosen.
  void set_spine(uint32_t plane, uint32_t pod, uint32_t spine, bool is_dead, bool is_rerouted);
  void set_leaf_link(uint32_t plane, uint32_t leaf, uint32_t spine, bool is_dead, bool is_rerouted);
  void slow_leaf_link(uint32_t plane, uint32_t leaf, uint32_t spine, double factor);
  void set_host(uint32_t plane, uint32_t host, bool is_dead);

  uint64_t dropped() const { return dropped_; }      // for want of room
  uint64_t swallowed() const { return swallowed_; }  // by what is dead
  uint64_t lost() const { return lost_; }            // by chance
  // The longest that the queue to a host was, in full packets, since the last call.
  uint32_t take_longest_queue(uint32_t host);
  uint32_t longest_core_queue() const { return longest_core_; }

 private:
  struct Port {
    int64_t busy_until_ns = 0;
    float slowness = 1;
    bool is_dead = false, is_avoided = false;
    uint32_t longest = 0;
  };
  // Where a parcel goes from here: a port, and what is behind it.
  uint32_t choose(Parcel& parcel);
  bool enqueue(Port& port, Parcel& parcel, int64_t now_ns, int64_t* leaves_ns);
  void forward(uint32_t index, int64_t now_ns);
  void arrive(uint32_t index, int64_t now_ns);
  uint32_t pick_up(const Parcel& parcel, uint32_t first_port, uint32_t count, uint32_t salt);
  uint32_t leaf_of(uint32_t host) const { return host / shape_.hosts_per_leaf; }
  uint32_t pod_of(uint32_t leaf) const { return leaf / shape_.leaves_per_pod; }

  // Ports of one plane, in this order.
  uint32_t host_up(uint32_t plane, uint32_t host) const { return plane * plane_ports_ + host; }
  uint32_t host_down(uint32_t plane, uint32_t host) const { return plane * plane_ports_ + hosts_ + host; }
  uint32_t leaf_up(uint32_t plane, uint32_t leaf, uint32_t spine) const {
    return plane * plane_ports_ + 2 * hosts_ + leaf * shape_.spines + spine;
  }
  uint32_t spine_down(uint32_t plane, uint32_t leaf, uint32_t spine) const {
    return leaf_up(plane, leaf, spine) + leaves_ * shape_.spines;
  }
  uint32_t spine_up(uint32_t plane, uint32_t pod, uint32_t spine, uint32_t core) const {
    return plane * plane_ports_ + 2 * hosts_ + 2 * leaves_ * shape_.spines +
           (pod * shape_.spines + spine) * shape_.cores_per_spine + core;
  }
  uint32_t core_down(uint32_t plane, uint32_t pod, uint32_t spine, uint32_t core) const {
    return spine_up(plane, pod, spine, core) + shape_.pods * shape_.spines * shape_.cores_per_spine;
  }

  FabricShape shape_;
  FabricTemper temper_;
  Random random_;
  EventQueue& events_;
  Receiver receiver_;
  uint32_t kind_;
  uint32_t hosts_, leaves_, plane_ports_;
  double ns_per_byte_;
  std::vector<Port> ports_;
  std::vector<Parcel> parcels_;
  std::vector<uint32_t> free_;
  uint64_t dropped_ = 0, swallowed_ = 0, lost_ = 0;
  uint32_t longest_core_ = 0;
};

}  // namespace verbena::protocol::datagram::sim
