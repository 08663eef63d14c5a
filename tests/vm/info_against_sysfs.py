"""Holds what verbena-info --json says of ports against sysfs. usage: info_against_sysfs.py DOCUMENT DEVICE..."""

import ipaddress
import json
import pathlib
import sys


def read(path):
    try:
        return path.read_text().strip()
    except OSError:  # an empty entry of the GID table has no type
        return ""


def list_gids(port):
    """The entries in use: index, address, type."""
    for entry in sorted((port / "gids").iterdir(), key=lambda path: int(path.name)):
        address = ipaddress.IPv6Address(read(entry))
        if int(address) != 0:
            yield int(entry.name), address, read(port / "gid_attrs/types" / entry.name)


def check_port(device, view):
    name = device["device"]
    port = pathlib.Path("/sys/class/infiniband") / name / "ports/1"
    state = read(port / "state").split(": ")[1].lower()
    assert device["state"] == state == "active", (name, device["state"], state)
    rate_mbps = float(read(port / "rate").split()[0]) * 1000
    assert device["speed_mbps"] == rate_mbps, (name, device["speed_mbps"], rate_mbps)
    shown = [(gid["index"], ipaddress.IPv6Address(gid["address"]), gid["type"]) for gid in device["gids"]]
    assert shown == list(list_gids(port)), (name, shown, list(list_gids(port)))
    assert ipaddress.IPv6Address(device["gid"]["address"]).ipv4_mapped is not None, device["gid"]
    assert device["gid"] in device["gids"], device["gid"]
    assert device["link_layer"] == read(port / "link_layer"), name
    assert device["software"] == "kernel" and device["usable"], name
    assert device["gpu_memory"]["path"] == "none" and device["gpu_memory"]["why"], device["gpu_memory"]
    assert (view["name"], view["speed_mbps"], view["memory"]) == (device["name"], rate_mbps, ["host"]), view


def main():
    document = json.loads(pathlib.Path(sys.argv[1]).read_text())
    devices = document["devices"]
    assert [device["device"] for device in devices] == sys.argv[2:], devices
    for device in devices:
        check_port(device, document["nccl_view"]["devices"][device["index"]])
        # What the plugin's own init said that it uses.
        used = f"device {device['device']}:1: Ethernet, gid {device['gid']['address']} index {device['gid']['index']},"
        said = [message["text"] for message in document["messages"]]
        assert any(used in text for text in said), (used, said)
    print(f"{len(devices)} ports are as sysfs has them")


main()
