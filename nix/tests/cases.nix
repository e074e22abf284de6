# What services.proxyd may be, and what it may not. Each good one is what the daemon
# accepts, too; each bad one is refused by the option named, and what it would come to in
# the file (`json`) is refused by the daemon. A secret is the module's to refuse alone:
# the daemon can't know where a file came from.
{ pkgs }:
let
  url = "https://example.org/a.qcow2";
  digest = "0f3b4b6ad4ed6ae1b3a3d8c8f0b1c5ed5dbba2f4c1ea2cc0b5e9e4cb0e0e4a55";
  other = builtins.hashString "sha256" "other";
  knownHosts = "attic ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIexample";
  overSsh = {
    uri = "qemu+ssh://operator@attic/system";
    ssh = {
      keyFile = "/run/secrets/attic";
      inherit knownHosts;
    };
  };
  file = pkgs.writeText "image.raw" "an image";
  longName = builtins.concatStringsSep "" (builtins.genList (_: "a") 63);
  urlKey = builtins.substring 0 16 (builtins.hashString "sha256" url);
  proxy = settings: {
    images.a.url = url;
    proxies.web = {
      image = "a";
    }
    // settings;
  };
  # The same in the file.
  health = settings: {
    option = "health.${builtins.head (builtins.attrNames settings)}";
    module.health = settings;
    json.health = settings;
  };
  ofProxy = settings: {
    option = "proxies.web.${builtins.head (builtins.attrNames settings)}";
    module = proxy settings;
    json = proxy settings;
  };
  ofImage = settings: {
    option = "images.a.${builtins.head (builtins.attrNames settings)}";
    module.images.a = {
      inherit url;
    }
    // settings;
    json.images.a = {
      inherit url;
    }
    // settings;
  };
  ofEntry = settings: {
    option = "providers.e.${builtins.head (builtins.attrNames settings)}";
    module.providers.e = settings;
    json.providers.e = settings;
  };
in
{
  good = {
    nothing = { };
    an-image.images.a.url = url;
    a-pinned-image.images.a = {
      inherit url;
      sha256 = digest;
    };
    a-digest-in-capitals.images.a = {
      inherit url;
      sha256 = "0F3B4B6AD4ED6AE1B3A3D8C8F0B1C5ED5DBBA2F4C1EA2CC0B5E9E4CB0E0E4A55";
    };
    a-listed-image.images.a = {
      inherit url;
      sha256Url = "https://example.org/SHA256SUMS";
    };
    a-raw-bios-image.images.a = {
      url = "http://example.org/a.raw.xz";
      format = "raw";
      firmware = "bios";
    };
    a-file-url.images.a.url = "file:///srv/a.qcow2";
    a-path.images.a.url = "/srv/an image.qcow2";
    a-store-path.images.a.url = "${file}";
    a-package.images.a.url = file;
    an-image-of-one-entry = {
      providers = {
        one = { };
        two = { };
      };
      images.a = {
        inherit url;
        providers = [ "one" ];
      };
      proxies.web = {
        provider = "one";
        image = "a";
      };
    };
    an-entry-with-its-own-image = {
      images.a.url = url;
      providers.one.images.a.url = "https://mirror.example.org/a.qcow2";
    };
    another-host.providers.attic = overSsh;
    another-host-by-address.providers.attic = overSsh // {
      uri = "qemu+ssh://operator@[2001:db8::1]:2222/system";
    };
    a-bridge.providers.e.network.bridge = "br0";
    every-key-of-an-entry.providers.e = {
      type = "kvm2";
      uri = "qemu:///system";
      pool = "my vms";
      network.network = "lan";
      virtType = "qemu";
      installGuestAgent = false;
      vendorData = "#cloud-config\n{}\n";
      maxConcurrent = 64;
    };
    the-longest-name.providers.${longName} = { };
    a-proxy = proxy { };
    every-key-of-a-proxy = proxy {
      provider = "local";
      userData = "#!/bin/sh\necho \"hello\"\n";
      networkConfig = "version: 2\n";
      allowedClients = [
        "192.0.2.0/24"
        "192.0.2.7"
        "2001:db8::/64"
        "::1"
      ];
      vcpus = 512;
      memoryMiB = 128;
      diskGiB = 65536;
      port = 65535;
      healthUrl = "https://example.org/";
      autostart = false;
      onRemoval = "keep";
    };
    bytes-as-user-data = proxy { userData.base64 = "H4sIAAAAAAAAAwMAAAAAAAAAAAA="; };
    a-proxy-of-a-url.proxies.web = {
      image = url;
      imageSha256 = digest;
      imageFormat = "raw";
    };
    two-proxies-of-a-url.proxies = {
      one.image = url;
      two = {
        image = url;
        imageSha256 = digest;
      };
    };
    probing.health = {
      url = "http://example.org/generate_204";
      expectStatus = 200;
      interval = "1m 30s";
      timeout = "100ms";
      unhealthyAfter = 1;
      healthyAfter = 5;
    };
    a-short-interval.health.interval = "1s";
    metrics.metrics.listen = "[::1]:9750";
    metrics-on-a-socket.metrics.listen = "unix:/run/proxyd/metrics.sock";
    more-settings = {
      providers.e = { };
      settings.providers.e.maxConcurrent = 5;
    };
    a-host-of-its-own = {
      group = "wheel";
      createPool.vms.path = "/srv/vms";
      createNetwork.proxies = {
        address = "10.64.0.1";
        prefixLength = 22;
        dhcpStart = "10.64.0.2";
        dhcpEnd = "10.64.3.254";
        forward = "route";
        bridge = "virbr-proxyd";
      };
    };
    nothing-made = {
      createPool = { };
      createNetwork = { };
    };
  };

  bad = {
    an-entry-in-capitals = {
      option = "providers";
      module.providers.Home = { };
      json.providers.Home = { };
    };
    an-entry-too-long = {
      option = "providers";
      module.providers."${longName}a" = { };
      json.providers."${longName}a" = { };
    };
    an-image-with-a-dot = {
      option = "images";
      module.images."debian-13.1".url = url;
      json.images."debian-13.1".url = url;
    };
    a-proxy-ending-in-a-hyphen = {
      option = "proxies";
      module = {
        images.a.url = url;
        proxies.web-.image = "a";
      };
      json = {
        images.a.url = url;
        proxies.web-.image = "a";
      };
    };
    no-entry = {
      option = "providers";
      module.providers = { };
      json.providers = { };
    };
    an-unknown-type = ofEntry { type = "xen"; };
    an-unknown-option = {
      option = "providers.e.virttype";
      module.providers.e.virttype = "kvm";
      json.providers.e.virttype = "kvm";
    };
    another-hypervisor = ofEntry { uri = "xen:///system"; };
    a-password-in-the-uri = ofEntry {
      uri = "qemu+ssh://operator:hunter2@attic/system";
    };
    parameters-over-ssh = {
      option = "providers.e.uri";
      module.providers.e = overSsh // {
        uri = "qemu+ssh://attic/system?no_verify=1";
      };
      json.providers.e = {
        uri = "qemu+ssh://attic/system?no_verify=1";
        ssh = {
          keyCredential = "ssh-e";
          inherit knownHosts;
        };
      };
    };
    over-ssh-without-a-key = {
      option = "providers.e.ssh";
      module.providers.e.uri = "qemu+ssh://attic/system";
      json.providers.e.uri = "qemu+ssh://attic/system";
    };
    a-key-for-this-host = {
      option = "providers.e.ssh";
      module.providers.e = { inherit (overSsh) ssh; };
      json.providers.e.ssh = {
        keyCredential = "ssh-e";
        inherit knownHosts;
      };
    };
    no-host-key = {
      option = "providers.e.ssh.knownHosts";
      module.providers.e = overSsh // {
        ssh = overSsh.ssh // {
          knownHosts = "\n# none yet\n";
        };
      };
      json.providers.e = {
        inherit (overSsh) uri;
        ssh = {
          keyCredential = "ssh-e";
          knownHosts = "\n# none yet\n";
        };
      };
    };
    a-pool-by-its-path = ofEntry { pool = "/srv/vms"; };
    a-network-without-a-name = ofEntry { network.network = " "; };
    a-network-and-a-bridge = ofEntry {
      network = {
        network = "default";
        bridge = "br0";
      };
    };
    neither-network-nor-bridge = ofEntry { network = { }; };
    a-bridge-too-long = ofEntry { network.bridge = "bridge-to-the-attic"; };
    too-many-at-once = ofEntry { maxConcurrent = 65; };
    no-url = {
      option = "images.a.url";
      module.images.a = { };
      json.images.a = { };
    };
    another-scheme = ofImage { url = "ftp://example.org/a.qcow2"; };
    a-relative-path = ofImage { url = "images/a.qcow2"; };
    a-short-digest = ofImage { sha256 = "abc"; };
    two-digests = {
      option = "images.a";
      module.images.a = {
        inherit url;
        sha256 = digest;
        sha256Url = url;
      };
      json.images.a = {
        inherit url;
        sha256 = digest;
        sha256Url = url;
      };
    };
    another-format = ofImage { format = "vmdk"; };
    another-firmware = ofImage { firmware = "secure"; };
    two-images-of-one-file = {
      option = "images";
      module.providers = {
        a.images.b-c.url = url;
        a-b.images.c.url = "https://example.org/other";
      };
      json.providers = {
        a.images.b-c.url = url;
        a-b.images.c.url = "https://example.org/other";
      };
    };
    a-key-like-that-of-a-url = {
      option = "images";
      module = {
        images.${urlKey}.url = "https://example.org/other";
        proxies.web.image = url;
      };
      json = {
        images.${urlKey}.url = "https://example.org/other";
        proxies.web.image = url;
      };
    };
    a-url-with-two-digests = rec {
      option = "images";
      module.proxies = {
        one = {
          image = url;
          imageSha256 = digest;
        };
        two = {
          image = url;
          imageSha256 = other;
        };
      };
      json = module;
    };
    a-url-of-two-formats = rec {
      option = "images";
      module.proxies = {
        one.image = url;
        two = {
          image = url;
          imageFormat = "raw";
        };
      };
      json = module;
    };
    an-unknown-image = ofProxy { image = "b"; };
    an-image-of-another-entry = {
      option = "proxies.web.image";
      module = {
        providers = {
          one = { };
          two = { };
        };
        images.a = {
          inherit url;
          providers = [ "two" ];
        };
        proxies.web = {
          provider = "one";
          image = "a";
        };
      };
      json = {
        providers = {
          one = { };
          two.images.a.url = url;
        };
        proxies.web = {
          provider = "one";
          image = "a";
        };
      };
    };
    an-unknown-entry = ofProxy { provider = "attic"; };
    no-entry-named = rec {
      option = "proxies.web.provider";
      module = {
        providers = {
          one = { };
          two = { };
        };
      }
      // proxy { };
      json = module;
    };
    a-digest-of-a-key = rec {
      option = "proxies.web";
      module = proxy { imageSha256 = digest; };
      json = module;
    };
    too-many-processors = ofProxy { vcpus = 513; };
    too-little-memory = ofProxy { memoryMiB = 64; };
    no-disk = ofProxy { diskGiB = 0; };
    no-port = ofProxy { port = 65536; };
    a-network-beyond-its-mask = ofProxy { allowedClients = [ "192.0.2.7/24" ]; };
    no-network = ofProxy { allowedClients = [ "everybody" ]; };
    a-file-as-health-url = ofProxy { healthUrl = "file:///etc/passwd"; };
    another-fate = ofProxy { onRemoval = "archive"; };
    a-number-as-interval = health { interval = 30; };
    an-interval-too-long = health { interval = "25h"; };
    a-timeout-too-short = health { timeout = "50ms"; };
    a-timeout-beyond-the-interval = health { timeout = "1m"; };
    no-status = health { expectStatus = 42; };
    no-failures = health { unhealthyAfter = 0; };
    metrics-for-everybody = {
      option = "metrics.listen";
      module.metrics.listen = "0.0.0.0:9750";
      json.metrics.listen = "0.0.0.0:9750";
    };
  };

  # What only NixOS can get wrong.
  ours = {
    a-key-copied-to-the-store = {
      option = "providers.e.ssh.keyFile";
      module.providers.e = overSsh // {
        ssh = overSsh.ssh // {
          keyFile = ./cases.nix;
        };
      };
    };
    a-key-in-the-store = {
      option = "providers.e.ssh.keyFile";
      module.providers.e = overSsh // {
        ssh = overSsh.ssh // {
          keyFile = "${file}";
        };
      };
    };
    a-key-in-user-data = {
      option = "proxies.web.userData";
      module = proxy {
        userData = "#cloud-config\n-----BEGIN OPENSSH PRIVATE KEY-----\n";
      };
    };
    a-key-among-host-keys = {
      option = "providers.e.ssh.knownHosts";
      module.providers.e = overSsh // {
        ssh = overSsh.ssh // {
          knownHosts = "-----BEGIN OPENSSH PRIVATE KEY-----\n";
        };
      };
    };
    a-password-in-an-image-url = {
      option = "images.a.url";
      module.images.a.url = "https://me:hunter2@example.org/a.qcow2";
    };
    an-image-for-no-entry = {
      option = "images.a.providers";
      module.images.a = {
        inherit url;
        providers = [ "attic" ];
      };
    };
    a-relative-pool = {
      option = "createPool.vms.path";
      module.createPool.vms.path = "srv/vms";
    };
    a-pool-with-a-slash-at-its-end = {
      option = "createPool.vms.path";
      module.createPool.vms.path = "/srv/vms/";
    };
    a-key-with-a-specifier = {
      option = "providers.e.ssh.keyFile";
      module.providers.e = overSsh // {
        ssh = overSsh.ssh // {
          keyFile = "/run/secrets/%i";
        };
      };
    };
    a-key-deep-in-much-user-data = {
      option = "proxies.web.userData";
      module = proxy {
        userData =
          builtins.concatStringsSep "\n" (builtins.genList (n: "# line ${toString n}") 20000)
          + "-----BEGIN OPENSSH PRIVATE KEY-----\n";
      };
    };
    guests-beyond-their-network = {
      option = "createNetwork.lan";
      module.createNetwork.lan = {
        address = "10.0.0.1";
        dhcpStart = "10.0.0.2";
        dhcpEnd = "10.0.1.254";
      };
    };
    guests-at-the-hosts-address = {
      option = "createNetwork.lan";
      module.createNetwork.lan = {
        address = "10.0.0.10";
        dhcpStart = "10.0.0.2";
        dhcpEnd = "10.0.0.254";
      };
    };
    a-group-with-a-quote = {
      option = "group";
      module.group = "x\")) || (\"";
    };
  };
}
