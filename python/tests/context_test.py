"""Tests contexts, windows and teams on ranks without a GPU. The ranks are processes that share host memory."""
import ctypes
import struct
import time

import pytest

import stand_ins
import verbena
from ranks import on_ranks
from verbena.mesh import create_mesh_teams


@on_ranks(3)
def test_windows_and_teams(rank):
    with verbena.SymmetricContext.from_environment() as context:
        assert (context.rank, context.size) == (rank, 3)
        with context.allocate(1000) as window:
            assert window.length_bytes == len(window) == 1000 and not window.is_on_gpu
            assert not hasattr(window, "__cuda_array_interface__")
            assert context.find_window(window.address + 999).handle == window.handle
            assert context.find_window(4096) is None
            window.host_view((rank + 1) % 3)[0] = rank + 1
            context.barrier()
            assert window.host_view()[0] == (rank + 2) % 3 + 1
            freed = window
        with pytest.raises(ValueError, match="freed"):
            freed.address
        world = context.world
        assert (world.size, context.lsa.size, world.rank) == (3, 3, rank)
        assert world.device_context and world.backend == verbena.Backend.VERBENA
        team = context.split(world, -1 if rank == 1 else 5, -rank)
        assert (team is None) == (rank == 1)
        if team is not None:
            with team:
                assert (team.size, team.world_rank(0)) == (2, 2)
                with pytest.raises(ValueError, match="rank 2 is not in this team of 2"):
                    team.world_rank(2)
        backwards = context.create_team([2, 1, 0])
        assert backwards.rank == 2 - rank
        with context.allocate(64) as window:
            table = struct.unpack("1024Q", backwards.make_tilescale_table(window))
            assert table[:5] == (2 - rank, 3, *(window.peer_address(peer) for peer in (2, 1, 0)))
            assert table[4 - rank] == window.address and set(table[5:-1]) == {0}
            assert table[-1] == backwards.device_context
        context.check_error()
    with pytest.raises(ValueError, match="closed"):
        context.barrier()
    with pytest.raises(ValueError, match="closed"):
        world.size


@on_ranks(3)
def test_teams_are_made_good_again(rank):
    with verbena.SymmetricContext.from_environment() as context:
        context.quiet()
        pair = context.create_team([0, 1] if rank < 2 else [])
        context.reset(pair)
        context.reset(context.world)
        with pytest.raises(verbena.VerbenaError, match="passed a different list") as caught:
            context.reset(context.world if rank == 0 else pair)
        assert caught.value.result == verbena.Result.INVALID_USAGE
        context.check_error()


@on_ranks(3)
def test_workspaces(rank):
    with verbena.SymmetricContext.from_environment() as context:
        pair = context.create_team([0, 1] if rank < 2 else [])
        with context.create_workspace(pair, 1 << 16, 16) as workspace:
            assert workspace.is_member == (rank < 2)
            assert workspace.slot_bytes == (512 if rank < 2 else 0)
            if rank < 2:
                assert workspace.backend == verbena.Backend.VERBENA and workspace.device_context
                assert (workspace.team.size, workspace.team.rank) == (2, rank)
                assert workspace.team.device_context not in (pair.device_context, context.world.device_context)
            else:
                for of_members in ("device_context", "team"):
                    with pytest.raises(ValueError, match="not a member"):
                        getattr(workspace, of_members)
            workspace.reset()
            workspace.check_error()
            freed = workspace
        with pytest.raises(ValueError, match="freed"):
            freed.slot_bytes
        with pytest.raises(verbena.VerbenaError, match="create different workspaces"):
            context.create_workspace(context.world, 4096, 1 + rank)


@on_ranks(7)
def test_teams_along_a_mesh(rank):
    with verbena.SymmetricContext.from_environment() as context:
        # Ranks 0 to 5 in two rows of three; rank 6 is outside.
        teams = create_mesh_teams(context, stand_ins.DeviceMesh(rank, (2, 3), ("down", "along")))
        lines = {name: [team.world_rank(member) for member in range(team.size)] for name, team in teams.items()}
        unnamed = create_mesh_teams(context, stand_ins.DeviceMesh(rank, (1, 6)))
        row, column = divmod(rank, 3)
        expected = {"down": [column, 3 + column], "along": [3 * row, 3 * row + 1, 3 * row + 2]}
        assert lines == (expected if rank < 6 else {})
        assert {name: team.size for name, team in unnamed.items()} == ({"0": 1, "1": 6} if rank < 6 else {})


@on_ranks(1)
def test_calls_on_streams_need_a_gpu(rank):
    with verbena.SymmetricContext.from_environment() as context, context.allocate(4096) as window:
        world = context.world
        for call in (world.barrier, world.quiet, lambda: world.signal(0, 0), lambda: world.wait(0, 1),
                     lambda: world.put(window.address, (window.address, 8), 0),
                     lambda: world.put_pieces([(window.address, (window.address + 8, 8))], 0),
                     lambda: world.get((window.address, 8), window.address, 0)):
            with pytest.raises(verbena.VerbenaError, match="needs a GPU") as caught:
                call()
            assert caught.value.result == verbena.Result.INVALID_USAGE


@on_ranks(2)
def test_errors_are_exceptions(rank):
    lines = []
    verbena.set_log(lambda level, line: lines.append((level, line)))
    with verbena.SymmetricContext.from_environment() as context:
        with pytest.raises(verbena.VerbenaError, match="ranks 0 and 1") as caught:
            context.allocate(4096 if rank == 0 else 1 << 20)
        assert caught.value.result == verbena.Result.INVALID_USAGE
    assert any(level == 0 and "ranks 0 and 1" in line for level, line in lines), lines
    with pytest.raises(ValueError, match="128 bytes"):
        verbena.SymmetricContext(b"short", 0, 1)


@on_ranks(1)
def test_an_abort_is_told(rank):
    with verbena.SymmetricContext.from_environment() as context:
        context.check_error()
        context.abort()
        with pytest.raises(verbena.VerbenaError) as caught:
            context.check_error()
        assert caught.value.result == verbena.Result.INVALID_USAGE


@on_ranks(2)
def test_a_rank_that_raises_takes_the_others_along(rank):
    # Without an abort each would wait for the other: one in freeing the window, one in closing the context.
    expected = ZeroDivisionError if rank == 1 else verbena.VerbenaError
    with pytest.raises(expected) as caught:
        with verbena.SymmetricContext.from_environment() as context, context.allocate(8):
            context.barrier()
            if rank == 1:
                raise ZeroDivisionError
    assert rank == 1 or caught.value.result == verbena.Result.REMOTE_ERROR


def _gather_alone(mine):
    return [mine]


@on_ranks(1)
def test_over_the_callers_all_gather(rank):
    with verbena.SymmetricContext.from_all_gather(_gather_alone, 0, 1) as context:
        assert context.size == 1 and context.allocate(1).address
    with pytest.raises(verbena.VerbenaError) as caught:
        verbena.SymmetricContext.from_all_gather(lambda mine: [mine + b"x"], 0, 1)
    assert "all_gather() returned parts" in str(caught.value.__cause__)
    def fail(mine):
        raise KeyError("the caller's")
    with pytest.raises(verbena.VerbenaError) as caught:
        verbena.SymmetricContext.from_all_gather(fail, 0, 1)
    assert isinstance(caught.value.__cause__, KeyError)


@on_ranks(2)
def test_ranks_meet_by_a_unique_id(rank, tmp_path):
    place = tmp_path / "id"
    if rank == 0:
        (tmp_path / "part").write_bytes(verbena.make_unique_id())
        (tmp_path / "part").rename(place)
    for _ in range(600):
        if place.exists():
            break
        time.sleep(0.05)
    with verbena.SymmetricContext(place.read_bytes(), rank, 2) as context:
        assert context.rank == rank


@on_ranks(1)
def test_memory_that_cannot_be_shared_is_refused(rank):
    memory = ctypes.create_string_buffer(4096)
    with verbena.SymmetricContext.from_environment() as context:
        with pytest.raises(verbena.VerbenaError) as caught:
            context.register_memory(ctypes.addressof(memory), 4096)
        assert caught.value.result == verbena.Result.INVALID_USAGE
