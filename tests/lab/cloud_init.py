"""Has cloud-init process seeds as it does at a first boot, and tells what came of it.

Usage: cloud_init.py CORPUS

Each directory CORPUS/NAME/seed holds the files of a NoCloud volume. The real
datasource reads them and the real handlers get them; CORPUS/NAME/result.json says
what each handler was given and what it made of it. Bytes are in base64.
"""

import base64
import json
import logging
import os
import shutil
import sys
import traceback

from cloudinit import handlers, stages, version
from cloudinit.settings import PER_INSTANCE
from cloudinit.sources import DEP_FILESYSTEM, DataSource


CLOUD = "/var/lib/cloud"
# The seed is in a directory: no device has to be searched for it.
CONFIGURATION = {
    "datasource_list": ["NoCloud", "None"],
    "datasource": {"NoCloud": {"fs_label": None}},
}


def encoded(data):
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    return base64.b64encode(data or b"").decode()


def files_of(directory):
    """The regular files of a directory, each with its content."""
    found = {}
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found[name] = encoded(file.read())
    return found


class Recorder:
    """Notes what handlers are given, vendor-data and user-data apart."""

    def __init__(self):
        self.parts = {"vendor": [], "user": []}
        self.current = None

    def install(self):
        real = handlers.run_part

        def run_part(mod, data, filename, payload, frequency, headers):
            if payload is not None and self.current:
                kind = headers["Content-Type"]
                part = {"type": kind, "name": filename, "payload": encoded(payload)}
                self.parts[self.current].append(part)
            return real(mod, data, filename, payload, frequency, headers)

        handlers.run_part = run_part
        self.follow("_consume_vendordata", "vendor")
        self.follow("_consume_userdata", "user")

    def follow(self, name, label):
        real = getattr(stages.Init, name)

        def consume(init, *args, **kwargs):
            self.current = label
            try:
                return real(init, *args, **kwargs)
            finally:
                self.current = None

        setattr(stages.Init, name, consume)


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def process(sample):
    """What `cloud-init init` does, without a network to bring up."""
    recorder, warnings = Recorder(), Warnings()
    recorder.install()
    logging.getLogger().addHandler(warnings)
    result = {"version": version.version_string(), "error": None}
    # Like `init --local`: a NoCloud volume needs no network.
    init = stages.Init(ds_deps=[DEP_FILESYSTEM])
    try:
        init.read_cfg()
        init.initialize()
        shutil.copytree(os.path.join(sample, "seed"), CLOUD + "/seed/nocloud")
        init.fetch(existing="trust")
        init.instancify()
        init.setup_datasource()
        init.update()
        init.cloudify().run(
            "consume_data", init.consume_data, args=[PER_INSTANCE], freq=PER_INSTANCE
        )
        result.update(outcome(init, CLOUD + "/instance"))
    except Exception:
        result["error"] = traceback.format_exc()
    result.update(recorder.parts)
    result["warnings"] = warnings.lines
    return result


def outcome(init, instance):
    source = init.datasource
    hostname = source.get_hostname()
    network = getattr(source, "network_config", None)
    return {
        "datasource": str(source),
        "instanceId": source.get_instance_id(),
        "hostname": getattr(hostname, "hostname", hostname),
        "network": network if isinstance(network, dict) else None,
        "userData": encoded(DataSource.get_userdata_raw(source)),
        "scripts": files_of(instance + "/scripts"),
        "vendorScripts": files_of(instance + "/scripts/vendor"),
        "config": {key: init.cfg.get(key) for key in ("packages", "runcmd", "write_files", "bootcmd")},
    }


def run(sample):
    """In a process of its own, since cloud-init keeps state in its modules, and as the
    first boot of a new guest."""
    shutil.rmtree(CLOUD, ignore_errors=True)
    shutil.rmtree("/run/cloud-init", ignore_errors=True)
    child = os.fork()
    if child == 0:
        result = process(sample)
        with open(os.path.join(sample, "result.json"), "w") as file:
            json.dump(result, file, default=str)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def main():
    corpus = sys.argv[1]
    with open("/etc/cloud/cloud.cfg.d/99_seeds.cfg", "w") as file:
        json.dump(CONFIGURATION, file)
    failed = [name for name in sorted(os.listdir(corpus)) if run(os.path.join(corpus, name))]
    for name in failed:
        print(f"{name}: no result", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
