"""Careless lines of the device library and of libverbena_ops.so: marks of planted.py, and what is wrong there."""
from planted import all_of, argument, condition, drop, operand, part, returned, value

FAULTS = {
    "copy_has_a_piece_too_many": condition("length_bytes < head"),
    "nan_is_lost": operand(1),
    # More ranks than are added at a time.
    "later_terms_begin_a_sum": operand(2),
    "integers_merge_as_floats": condition("false"),
    "elements_travel_as_sums": value("false"),
    # Of a message by a rank that sends anything.
    "lossless_tiles_are_trusted": operand(2),
    "lossless_lists_are_trusted": operand(2),
    "rounds_outgrow_a_slot": value("even"),
    "second_half_is_not_looked_at": value("static_cast<int>(stored.x > kNoted)"),
    "old_note_is_believed": condition("false"),
    "rows_wrap_at_4_gib": value("static_cast<uint32_t>(offset) / static_cast<uint32_t>(row_bytes)"),
    "tiles_share_notes": value("slot + data_bytes_ + offset / Packet::kBytes * Packet::kNoteBytes"),
    # In two shots each rank hears from each: who does not come is named by ranks without a share too.
    "empty_share_is_silent": returned("round.length(member) == 0 ? 0U : {}"),
    "empty_coded_share_is_silent": value("tiles"),
    "chunks_split_elements": part(r"chunk_bytes_ / kVectorBytes \* kVectorBytes", "chunk_bytes_"),
    "direct_begins_alone": value("SymmStatus::kDone"),
    "direct_ends_alone": value("SymmStatus::kDone"),
    "parts_end_beyond_the_tensor": operand(5),
    "idle_grid_ends_early": drop(),
    # Of ranks that differ.
    "two_shots_take_any_vectors": operand(2, "call.length_bytes % kVectorBytes == 0"),
    "direct_without_a_promise": operand(2, "communicator.are_in_windows(call)"),
    "group_mixes_chunk_lengths": operand(2),
    "lossless_is_compared_with_nothing": operand(3),
    "hosts_wait_no_longer": drop(),
    "own_gpus_measurements_count": condition("true"),
    "own_gpu_has_clusters": value("mine.has_clusters != 0"),
    "every_communicator_fills_the_gpu": returned("std::clamp<uint32_t>(most, 1, kDefaultBlocks)"),
    "workspaces_have_one_size": value("kDefaultBlocks"),
    "reset_waits_for_no_kernel": drop(),
    # Of rows that are grouped by expert.
    "old_entries_are_not_renewed": drop(),
    "repeated_experts_count_twice": operand(2),
    "places_start_with_this_rank": value("own"),
    "combine_waits_for_dead_ranks": condition("false"),
    "dead_ranks_get_rows": part(r"shape_\.near", "((1U << shape_.ranks) - 1)"),
    "ranks_come_back_without_a_reset": drop(),
    # Of rows in windows.
    "items_are_taken_once": condition("false"),
    "others_end_unheard": value("0"),
    "formats_may_differ": condition("false"),
    # Of tokens between hosts.
    "word_leaves_before_its_chunk": all_of(argument(1, "number"), argument(2, "chunk")),
    "old_word_counts": condition("load_acquire<Scope::kSystem>(word) != 0"),
    "left_out_hosts_get_rows": operand(2),
    "sums_of_hosts_are_awaited_no_longer": value("false"),
    "chunk_leaves_before_its_rows": drop(),
    "sums_leave_before_they_are_written": condition("!have_come"),
    "counterparts_are_not_heard": drop(),
    "entries_of_other_hosts_are_not_renewed": drop(),
    "source_is_blamed_for_its_relay": condition("false"),
}
# For a build with ThreadSanitizer: bytes beside a tensor are read while another block writes them.
RACES = {
    "exchange_in_place_reads_beside": value("false"),
    "reduce_in_place_reads_beside": value("false"),
}
