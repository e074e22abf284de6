#!/usr/bin/env python3
"""Creates a Proxy, follows it until it is ready, prints its endpoint and removes it.

Debian: python3-dbus. Usage: proxies.py NAME IMAGE
"""
import sys
import time

import dbus

NAME = "org.proxyd1"
LIMIT = 900


def follow(bus, path):
    """Prints each step of the Proxy at `path`, and returns its properties when it is ready."""
    properties = dbus.Interface(bus.get_object(NAME, path), dbus.PROPERTIES_IFACE)
    last, deadline = None, time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        proxy = properties.GetAll(f"{NAME}.Proxy")
        step = (str(proxy["Phase"]), str(proxy["Reason"]))
        if step != last:
            print(*step, proxy["Message"], flush=True)
            last = step
        if proxy["Phase"] == "Ready":
            return proxy
        if proxy["Permanent"]:
            sys.exit(f"it failed: {proxy['Message']}")
        time.sleep(0.5)
    sys.exit(f"it is not ready after {LIMIT} s: {proxy['Message']}")


def main():
    name, image = sys.argv[1:]
    bus = dbus.SystemBus()
    manager = dbus.Interface(bus.get_object(NAME, "/org/proxyd1"), f"{NAME}.Manager")
    spec = dbus.Dictionary({"Image": image, "MemoryMiB": dbus.UInt64(256)}, signature="sv")
    try:
        path = manager.CreateProxy(name, spec)
    except dbus.DBusException as error:
        sys.exit(f"{error.get_dbus_name()}: {error.get_dbus_message()}")
    proxy = follow(bus, path)
    print("endpoint", proxy["Endpoint"])
    manager.DeleteProxy(name)


if __name__ == "__main__":
    main()
