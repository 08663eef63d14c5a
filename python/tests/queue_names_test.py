"""Compares the message queue with vLLM's own class, which is read from the files of vLLM's wheel (tools/setup engines). Verbena's class
must accept every call that vLLM makes, with the same arguments."""
import ast
import inspect

import pytest
from engine_files import list_engines
from verbena.distributed import MessageQueue

ENGINES = list_engines("vllm")
QUEUE_FILE = "vllm/distributed/device_communicators/shm_broadcast.py"
pytestmark = pytest.mark.skipif(not ENGINES, reason="no files of vLLM (tools/setup engines)")


def read_classes():
    tree = ast.parse((ENGINES[-1] / QUEUE_FILE).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def list_methods():
    found = (node for node in read_classes()["MessageQueue"].body if isinstance(node, ast.FunctionDef)) if ENGINES else ()
    return {node.name: [one.arg for one in node.args.args if one.arg != "self"] for node in found
            if node.name == "__init__" or not node.name.startswith("_")}


def list_users():
    """The trees of files that use the class."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(ENGINES[-1].rglob("*.py")) if path.name != "shm_broadcast.py"]
    return [ast.parse(text) for text in texts if "shm_broadcast import" in text or "mq_broadcaster" in text]


# It receives from a socket of ZeroMQ's, and nobody else calls it.
OTHERS_OWN = {"recv"}


@pytest.mark.parametrize("method", sorted(set(list_methods()) - OTHERS_OWN))
def test_arguments_are_in_the_same_order(method):
    theirs, ours = list_methods()[method], [*inspect.signature(getattr(MessageQueue, method)).parameters]
    assert [name for name in ours if name != "self"][:len(theirs)] == theirs


def test_every_field_of_a_handle_that_is_read_is_there():
    fields = {node.target.id for node in read_classes()["Handle"].body if isinstance(node, ast.AnnAssign)}
    assert len(fields) > 3
    read = {node.attr for tree in list_users() for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in fields}
    assert {"local_reader_ranks", "remote_subscribe_addr"} <= read  # else the search finds nothing
    with MessageQueue(1, 0) as queue:
        assert not [name for name in read if not hasattr(queue.export_handle(), name)]


def test_every_call_of_a_queue_binds():
    """Such as self.rpc_broadcast_mq.dequeue(indefinite=True)."""
    bound = 0
    for tree in list_users():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id == "MessageQueue":
                signature, first = inspect.signature(MessageQueue.__init__), [None]
            elif isinstance(call.func, ast.Attribute) and call.func.attr in list_methods() and "mq" in ast.unparse(call.func.value).lower():
                signature, first = inspect.signature(getattr(MessageQueue, call.func.attr)), [None]
            elif isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "MessageQueue":
                signature, first = inspect.signature(getattr(MessageQueue, call.func.attr)), []
            else:
                continue
            signature.bind(*first, *call.args, **{one.arg: one.value for one in call.keywords})
            bound += 1
    assert bound > 15


