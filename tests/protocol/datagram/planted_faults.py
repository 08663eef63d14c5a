"""What plant_faults.py plants in the engines' core, and the tests that have to go red."""

HEADERS = "datagram"
TESTS = ["departures_test", "engine_core_test", "grants_test", "loss_times_test", "packet_test", "packet_window_test", "page_budget_test",
         "path_table_test", "simulation_test", "slab_test", "timer_wheel_test"]
SOURCES = [f"tests/protocol/datagram/{name}.cc" for name in TESTS] + [
    f"tests/protocol/datagram/simulation/{name}.cc" for name in ("fabric", "scenario", "small_world", "world")]
FILTER = "-DatagramSimulationLong.*"
SEEDS_VARIABLE = "DATAGRAM_SEEDS"
SEEDS = 1500

# name: (header of plugin/protocol/datagram, what stands there, what is planted instead)
FAULTS = {
    "a lost grant is not asked for again soon": (
        "send_side.h", "    peer.wish_doublings = 0;\n    if (peer.wish_ns != kNeverNs) peer.wish_ns = std::min(peer.wish_ns, shared_.port.now_ns() + kFirstWishNs);\n", ""),
    "a packet that never arrives is not told": (
        "send_side.h", "    if (peer.known != 0 && now_ns - peer.oldest_ns >= shared_.options.silence_ns) {", "    if (false) {"),
    "an eager packet that never arrives is not told": (
        "send_side.h", "    return is_free ? oldest : kNoObject;", "    return is_free ? kNoObject : kNoObject;"),
    "an eager packet without a grant is told to be lost": (
        "send_side.h", "oldest != kNoRecord && records_[oldest].where != SendRecord::Where::kHeldBack;", "oldest != kNoRecord;"),
    "the time in which a packet waits for its grant counts": (
        "send_side.h", "    if (records_[id].psn == peer.eager_unacked) peer.eager_oldest_ns = shared_.port.now_ns();\n", ""),
    "what a closed channel has under way stays unsaid": (
        "send_side.h", "    if (!peer.lost.is_empty()) enter_active(peer_id, peer);\n  }\n  void forget_flight", "  }\n  void forget_flight"),
    "what a channel refuses counts as arrived": ("receive_side.h", "      if (!channel.is_closed()) return {Verdict::kTooLong};\n", ""),
    "credits of a stopped channel are lost": (
        "send_side.h", "      give_back_credits(peer, sends_[id]);\n      set_state(peer, id, SendState::kDone);", "      set_state(peer, id, SendState::kDone);"),
    "a wish is not repeated": ("send_side.h", "        repeat_wishes(id, peer);\n", ""),
    "only the first wishes are repeated": (
        "send_side.h", "peer.wish_turn = is_round_over ? 0 : peer.wish_turn + kMaxWishesPerRequest;", "peer.wish_turn = 0;"),
    "nothing is evacuated": (
        "receive_side.h", "        budget_.moving() == 0)\n      evacuate();", "        budget_.moving() == 0)\n      return;"),
    "the GPU is lent all pages": ("page_budget.h", "return lent_ + count + reserve_ <= pages_;", "return lent_ + count <= pages_;"),
    "grants do not look at pages": (
        "page_budget.h", "least = std::min(least, posted - std::min(posted, taken));", "least = std::min(least, posted + taken);"),
    "short messages are lent": (
        "receive_side.h", "message.is_short = message.is_copied = true;", "message.is_short = true;"),
    "short pages come back as others": (
        "receive_side.h", "void add_idle(uint32_t pages, bool are_short = false) { (are_short ? short_idle_ : idle_) += pages; }",
        "void add_idle(uint32_t pages, bool = false) { idle_ += pages; }"),
    "a message has pages of two kinds": (
        "receive_side.h", "    if (message.received != 0 && message.is_short != packet.is_short())\n      return true;  // all its pages are of one kind\n", ""),
    "a short packet may be of any message": (
        "receive_side.h", "    if (packet.is_short() && !is_all_of_short(packet)) return {Verdict::kStray};\n", ""),
    "anything may be parked": ("page_budget.h", "return parked_ < shelf_;", "return true;"),
    "pages go to granted packets alone": ("page_budget.h", "    consider(PageQueue::kEager, eager_goal_);\n", ""),
    "a packet that is held back stays so": (
        "send_side.h", "if (record.message == message_id && record.index < sends_[message_id].granted)", "if (false)"),
    "eager credits of a complete message are not free again": (
        "receive_side.h", "      settle_eager(peer, message);\n      note_to_ack(peer_id, peer, true);\n", "      note_to_ack(peer_id, peer, true);\n"),
    "eager credits of a granted message are not free again": (
        "receive_side.h", "    settle_eager(shared_.peers[receive_channels_[message.channel].peer], message);\n    announce(id, message);",
        "    announce(id, message);"),
    "pages that were lent are not put back": (
        "receive_side.h", "    put_back_pages(message);\n    budget_.note_returned", "    budget_.note_returned"),
    "pages of a message that closes are not put back": (
        "receive_side.h", "      put_back_pages(message);\n      add_idle", "      add_idle"),
    "a page of a packet that is refused is not put back": (
        "receive_side.h", "shared_.statistics.strays);\n      free_page(packet.page, packet.is_short());", "shared_.statistics.strays);\n      add_idle(1, packet.is_short());"),
    "a packet's page goes where another one's belongs": (
        "receive_side.h", "{kNoObject, packet.place.index, packet.length_bytes}", "{kNoObject, packet.place.index + 1, packet.length_bytes}"),
    "an eager packet counts twice": (
        "packet_window.h", "return (bits_ >> ahead & 1) != 0 ? ReceiveWindow::Arrival::kDuplicate : ReceiveWindow::Arrival::kNew;",
        "return ReceiveWindow::Arrival::kNew;"),
    "a packet counts twice": (
        "packet_window.h", "return bits_.has(psn) ? Arrival::kDuplicate : Arrival::kNew;", "return Arrival::kNew;"),
    "a refused packet is acknowledged": (
        "receive_side.h", "                                             : shared_.statistics.strays);\n",
        "                                             : shared_.statistics.strays);\n"
        "      if (placed.verdict == Verdict::kRefused) packet.took_credit ? peer.eager.record(packet.psn) : peer.window.record(packet.psn);\n"),
    "a closed channel's packets are forgotten": (
        "send_side.h", "        if (record.message != kNoObject && record.message / kRing == ring) {\n          record.message = kNoObject;",
        "        if (record.message != kNoObject && record.message / kRing == ring) {\n          record.message = 0;"),
    "old echoes are measured": (
        "receive_side.h", "std::exchange(peer.has_echo, false) && hold < kNoSample ? static_cast<uint16_t>(hold) : kNoSample;",
        "static_cast<uint16_t>(peer.has_echo ? 0 : 0);"),
    "paths are not told apart": (
        "send_side.h", "if (is_overtaken || count_between(left, peer.newest) > across) lose(peer, id);",
        "if (count_between(record.sent, peer.newest) > same) lose(peer, id);"),
    "what waits in its send queue is lost": (
        "send_side.h", "if (has_left(record, left)) {", "if (has_left(record, left) || true) {"),
    "when packets left does not count": (
        "send_side.h", "if (is_before(when, record.sent)) when = record.sent;", "when = record.sent;"),
    "departures of long ago are made up": (
        "departures.h", "if (back > 0 && back <= static_cast<int32_t>(kTimes)) when", "if (back > 0) when"),
    "a lost packet takes its path again": (
        "send_side.h", "const uint32_t avoided = lost != kNoObject ? records_[lost].path : kPaths;",
        "const uint32_t avoided = kPaths; if (lost != kNoObject && (shared_.paths_of(rooms) >> records_[lost].path & 1) != 0) rooms = 1; if (lost != kNoObject) return resend(id, peer, lost, records_[lost].path), true;"),
    "no path ever rests": (
        "path_table.h", "if ((tried_ & bit) == 0 && state.streak < find_fatal_streak()) return false;", "return false;"),
    "a trial ends with nobody told, its packet sent again as a probe": (
        "send_side.h", "    if (is_probe && record.path != path) peer.paths.note_unknown(record.path, now.stamp);\n", ""),
    "a trial ends with nobody told, its packet an eager one": (
        "send_side.h", "    if (may_be_refused) {\n      peer.paths.note_unknown(record.path, shared_.now());\n    } else if (peer",
        "    if (may_be_refused) {\n    } else if (peer"),
    "a trial without an outcome doubles the next rest": (
        "path_table.h", "    if ((tried_ >> path & 1) != 0) rest(path, now);", "    if ((tried_ >> path & 1) != 0) rest(path, now), double_rest(path);"),
    "a trial is many packets": ("path_table.h", "tried_ |= 1U << path;  // sends no second packet before the result of this one is known", ""),
    "every peer has turns at once": (
        "grants.h", "turns.next == kNoObject || turns.served >= settings_.served_peers", "turns.next == kNoObject"),
    "one message is served until it is done": ("grants.h", "      turns.next = account.turns[length_class].next;\n", "      turns.next = peer;\n"),
    "messages of all lengths have turns together": (
        "grants.h", "return std::min((digits + 1) / 2, kLengthClasses - 1);", "return std::min(digits, 0U);"),
    "a peer may hold everything": (
        "grants.h", "    if (account.outstanding == 0) return false;", "    if (account.outstanding <= outstanding_) return false;"),
    "the last quantum is anybody's": (
        "grants.h", "if (account.outstanding + more <= share && left >= settings_.quantum) return false;",
        "if (account.outstanding + more <= share) return false;"),
    "a peer alone has a share, too": (
        "grants.h", "return account.outstanding != outstanding_ || wanting_peers_ != 1;  // other peers hold or want grants", "return true;"),
    "a peer that has its share keeps others from their turns": (
        "grants.h", "        if (++refused[length_class] >= turns.size) left.remove(length_class);\n        continue;", "        return;"),
    "grants that bring nothing stay": ("grants.h", "if (has_been_idle(message, account)) take_back(owner, id, message, account);", ""),
    "a packet does not end doubts": ("grants.h", "[[unlikely]]\n      trust(message, account);", "[[unlikely]] {\n    }"),
    "what is in doubt is granted like anything": (
        "grants.h", "const bool is_trial = account.is_doubted || message.is_doubted;", "const bool is_trial = false;"),
    "all that is in doubt is tried at once": (
        "grants.h", "return account.tried != kNoObject && owner.receives()[account.tried].outstanding() != 0;", "return false;"),
    "a message that waits behind others of its peer is in doubt": (
        "grants.h", "(has_sent_others ? kIdleBehindOthers : kIdle)", "kIdle"),
    "pages of a message whose grant is taken back are kept": (
        "receive_side.h", "void note_taken_back(uint32_t id, ReceiveMessage&) { evacuate(id); }", "void note_taken_back(uint32_t, ReceiveMessage&) {}"),
    "a peer that is given up keeps its grants": (
        "receive_side.h", "        withdraw(receives_[message], message);\n        note_taken_back", "        note_taken_back"),
    "a peer that is given up is sent to": (
        "send_side.h", "    if (peer.is_active) leave_active(id);\n    forget_flight(peer);\n    peer.wish_ns", "    forget_flight(peer);\n    peer.wish_ns"),
    "a wish is granted whatever there is room for": (
        "receive_side.h", "message.wanted = std::max(message.wanted, std::min(wish.packets, most));", "message.wanted = std::max(message.wanted, wish.packets);"),
    "only the newest packets are told of": ("packet_window.h", "if (!is_turn_of_old_) return newest;", "return newest;"),
    "pages that were copied are lost": (
        "receive_side.h", "    budget_of(message).note_moved(pages);\n    add_idle(pages, message.is_short);", "    budget_of(message).note_moved(pages);"),
    "an arrival leaves its grant open": (
        "grants.h", "    if (message.received++ < message.granted) {", "    if (++message.received == 0) {"),
    "a message that is done is still to be told of": (
        "receive_side.h", "      take_out(message.told == Told::kNot ? peer.not_told : peer.told_once, id);\n", ""),
    "what is parked is not counted down": ("receive_side.h", "    peer.parked -= message.received;\n", ""),
    "a second end of a message is believed": (
        "receive_side.h", "return end + packet.backlog > message.total || (packet.is_last && end != message.total);",
        "return false;"),
    "a long message is placed beyond its receive": ("receive_side.h", "if (least_bytes > message.room_bytes) return {Verdict::kTooLong, id};", ""),
    "a message that is too long is found by its last packet alone": (
        "receive_side.h", "return before + (packet.is_last ? packet.length_bytes : 1);",
        "return before - uint64_t{packet.backlog} * peer.data_bytes + packet.length_bytes;"),
    "the window does not count what is sent again": (
        "send_side.h", "if (where == SendRecord::Where::kFlight && !record.took_credit) ++peer.in_flight;",
        "if (where == SendRecord::Where::kFlight && !record.took_credit && record.tries == 0) ++peer.in_flight;"),
    "a probe is never sent": ("send_side.h", "    } else if (find_probe_ns(peer) <= now_ns) {", "    } else if (false) {"),
    "nothing times out": ("send_side.h", "    if (find_timeout_ns(peer) <= now_ns) {", "    if (false) {"),
    "an old acknowledgement counts as news": (
        "send_side.h", "    if (is_before(peer.unacked, cumulative)) {", "    peer.unacked = cumulative;\n    if (false) {"),
    "timers of a coarse level are forgotten": (
        "timer_wheel.h", "insert(id, at_ns, links);  // moves it from a coarse level to a finer one", "static_cast<void>(at_ns);"),
    "acknowledgements are due never": ("engine_core.h", "    if (peer.ack_ns <= now_ns) {", "    if (false) {"),
    "acknowledgements take any path": ("receive_side.h", "    return works ? peer.data_path : shared_.pick_control_path(peer);",
                                       "    return shared_.pick_control_path(peer);"),
    "a rail without room makes others' paths wait": (
        "path_table.h", "      if ((all_ & ~resting_ & ~tried_) != 0) return kNoPath;\n", ""),
}
