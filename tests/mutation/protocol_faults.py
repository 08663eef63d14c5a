"""Careless lines of plugin/protocol: marks of planted.py, and what is wrong there."""
from planted import argument, condition, drop, operand, returned, statement, together, value

CONNECTION = {
    "credit_is_not_returned": statement(
        "if (port().repost(queue_pair, pages)) "
        "credits_.give_back(queue_pair, static_cast<uint32_t>(pages.size() - (is_recovering_ ? 1 : 0)));"),
    "arrived_chunk_is_sent_again": operand(2),
    "arrival_counts_twice": statement("{} seen_ += tag.index == 1;"),
    "replay_overtakes_the_stop": operand(2),
    "stopped_queue_pair_is_not_emptied": returned("port.poll_completions()"),
    "slot_is_cleared_when_reported": statement("{} if (message.slot_taken) queue_->clear(message.slot);"),
    "pages_are_free_before_the_kernel_reads": drop(),
    "grants_are_not_written_again": value("core().next_"),
    "no_entry_is_kept_for_replays": argument(1, "0"),
    "consumed_while_an_older_message_is_open": condition("{} && &oldest != &ring_[(next_ - 1) % kMessageRing]"),
    "pages_are_not_pushed": condition("false"),
    "rail_that_wrote_is_not_flushed": value("1U << options_.rail_of[primary_]"),
    "copy_is_not_flushed": drop(),
    "flush_overtakes_an_earlier_one": condition("true"),
    "copy_is_not_awaited": operand(3),
    "full_send_queue_is_ignored": value("credits_.available(queue_pair)"),
    "held_pages_do_not_count_at_a_revival": value("returned"),
    "newest_receive_of_a_tag_is_taken": value("granted_ - kMessageRing + 31 - static_cast<uint32_t>(std::countl_zero(sorted))"),
    "receive_of_another_tag_is_taken": operand(4, "message.grant.tag() < 0"),
    "receive_is_taken_twice": drop(),
    "group_is_done_with_its_first_buffer": operand(1, "&part == &first"),
    "immediate_overtakes_its_bytes": together(argument(1, "port().make_work(queue_pair, message.memory, rest)"),
                                              argument(2, "port().make_work(queue_pair, message.memory, bytes)")),
    "credit_line_overtakes_another": operand(2),
    "grant_overtakes_an_older_one": operand(2),
    "grant_written_again_is_not_signaled": operand(2),
    "bytes_before_the_immediate_do_not_count": argument(2, "chunk.length_bytes"),
    "short_message_does_not_wait_for_credits": operand(1),
}

LANES = {
    "done_request_is_issued_again": drop(),
    "one_request_too_many_counts_as_done": value("numbers_.count(pair.retired_packets, request.packets) <= carried_out + 1"),
    "get_without_its_answer_counts_as_done": operand(1),
    "word_does_not_wait_for_other_rails": drop(),
    "written_word_does_not_wait_for_its_own_rail": drop(),
    "word_takes_any_live_rail": operand(1),
    "unsettled_rail_counts_as_empty": condition("{} && recovery_.is_live(other)"),
    "waiting_part_stays_on_its_rail": condition("{} || (part.queue_pair != kNobody && recovery_.is_live(part.queue_pair))"),
    "words_are_repeated_without_counts": drop(),
    "failed_requests_are_not_issued_again": drop(),
    "fence_does_not_hold": value("false"),
    "operation_is_done_before_its_last_share": returned("shares != 0 && open_shares <= (shares > 1 ? 1 : 0)"),
    "trial_is_not_counted": statement("if (request.operation != nullptr) {}"),
    "old_rail_of_words_is_not_stopped": drop(),
    "packet_numbers_wrap": returned("true"),
    "answer_without_a_queue_pair": condition("record.generation % 2 == 0"),
}
