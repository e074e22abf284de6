# What can be said of services.proxyd. What a value means to the daemon is told in
# docs/kvm-provider.md, docs/image-cache.md and docs/guest.md.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  own = import ./types.nix { inherit lib; };
  json = pkgs.formats.json { };

  # An option that the daemon has a default of its own for.
  unset =
    default: option:
    mkOption (
      {
        defaultText = lib.literalMD default;
      }
      // option
      // {
        type = types.nullOr option.type;
        default = null;
      }
    );

  imageOptions = {
    url = mkOption {
      type = own.imageSource;
      example = "https://example.org/debian-13-genericcloud-amd64.qcow2";
      description = ''
        Where the image is: an http, https or `file://` URL; or an absolute path or a
        package, such as the result of `pkgs.fetchurl`, which become a `file://` URL and
        stay in the system's closure. Compressed images (`.xz`, `.gz`, `.zst`) are
        decompressed on the way.
      '';
    };
    sha256 = unset "nothing is checked" {
      type = own.sha256;
      example = "0f3b4b6ad4ed6ae1b3a3d8c8f0b1c5ed5dbba2f4c1ea2cc0b5e9e4cb0e0e4a55";
      description = "What the downloaded file must hash to, as `sha256sum` prints it.";
    };
    sha256Url = unset "none" {
      type = own.httpUrl;
      example = "https://example.org/SHA256SUMS";
      description = ''
        Where the digest is listed, in place of `sha256`: a file as `sha256sum` writes it,
        with a line for the image's file name.
      '';
    };
    format = unset "`qcow2`" {
      type = types.enum [
        "qcow2"
        "raw"
      ];
      example = "raw";
      description = "The image's file format, decompressed.";
    };
    firmware = unset "`uefi`" {
      type = types.enum [
        "uefi"
        "bios"
      ];
      example = "bios";
      description = "The firmware that boots it. UEFI is without secure boot.";
    };
  };

  sharedImageOptions = imageOptions // {
    providers = unset "all of them" {
      type = types.listOf own.identifier;
      example = [ "home" ];
      description = "The provider entries that offer the image.";
    };
  };

  sshOptions = {
    keyFile = mkOption {
      type = own.secretFile;
      example = "/run/agenix/proxyd-attic";
      description = ''
        The private key, without a passphrase, as a path outside the Nix store that root
        can read. systemd hands it to the service (`LoadCredential=ssh-<entry>:<path>`);
        it does not have to be readable for anybody else.
      '';
    };
    knownHosts = mkOption {
      type = types.lines;
      example = "attic.example.ts.net ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA…";
      description = ''
        The host's keys in known_hosts format, under the name that the URI has
        (`[name]:port` with a port of its own). No other is accepted.
      '';
    };
  };

  networkOptions = {
    network = mkOption {
      type = types.nullOr own.libvirtName;
      default = null;
      example = "default";
      description = "A libvirt network, by name.";
    };
    bridge = mkOption {
      type = types.nullOr own.interfaceName;
      default = null;
      example = "br0";
      description = "A bridge of the host, by the name of its interface.";
    };
  };

  providerOptions = {
    type = mkOption {
      type = types.enum [
        "kvm"
        "kvm2"
      ];
      default = "kvm";
      example = "kvm2";
      description = ''
        `kvm` publishes straight into the pool's directory where that is on this host;
        `kvm2` always goes through libvirt's storage API.
      '';
    };
    uri = mkOption {
      type = own.libvirtUri;
      default = "qemu:///system";
      example = "qemu+ssh://proxyd-remote@attic.example.ts.net/system";
      description = ''
        The libvirt that runs the guests. One that goes over SSH needs `ssh`, and takes no
        parameters.
      '';
    };
    pool = mkOption {
      type = own.libvirtName;
      default = "default";
      example = "vms";
      description = "The libvirt storage pool for bases, overlays and seeds.";
    };
    network = mkOption {
      type = types.submodule { options = networkOptions; };
      default = {
        network = "default";
      };
      example = {
        bridge = "br0";
      };
      description = "What the guests are attached to: `network` or `bridge`, one of the two.";
    };
    virtType = mkOption {
      type = types.enum [
        "auto"
        "kvm"
        "qemu"
      ];
      default = "auto";
      example = "kvm";
      description = ''
        `auto` takes KVM where the host has it; `kvm` insists on it; `qemu` is software
        emulation.
      '';
    };
    installGuestAgent = mkOption {
      type = types.bool;
      default = true;
      example = false;
      description = "Whether vendor-data installs and starts the guest agent.";
    };
    vendorData = mkOption {
      type = types.nullOr own.bytes;
      default = null;
      example = ''
        #cloud-config
        timezone: Europe/Berlin
      '';
      description = ''
        cloud-init vendor-data for the guests of this entry, beside the agent's
        installation. It stands in the Nix store, where everybody can read it.
      '';
    };
    images = mkOption {
      type = types.attrsOf (types.submodule { options = imageOptions; });
      default = { };
      example = {
        debian-13.url = "https://mirror.example.net/debian-13-genericcloud-amd64.qcow2";
      };
      description = "Images of this entry alone, added to `services.proxyd.images` or in place of them.";
    };
    ssh = mkOption {
      type = types.nullOr (types.submodule { options = sshOptions; });
      default = null;
      example = {
        keyFile = "/run/agenix/proxyd-attic";
        knownHosts = "attic.example.ts.net ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA…";
      };
      description = "How to log in, for a `uri` that goes over SSH.";
    };
    maxConcurrent = mkOption {
      type = types.ints.between 1 64;
      default = 2;
      example = 4;
      description = "Images that may be on their way into the pool through the storage API at once.";
    };
  };

  proxyOptions = {
    provider = unset "the only entry" {
      type = own.identifier;
      example = "home";
      description = "The provider entry that runs the guest. Required where there are several.";
    };
    image = mkOption {
      type = own.imageChoice;
      example = "debian-13";
      description = "The image: a key that the entry offers, or a URL.";
    };
    imageSha256 = unset "nothing is checked" {
      type = own.sha256;
      example = "0f3b4b6ad4ed6ae1b3a3d8c8f0b1c5ed5dbba2f4c1ea2cc0b5e9e4cb0e0e4a55";
      description = "What an image given as a URL must hash to.";
    };
    imageFormat = unset "`qcow2`" {
      type = types.enum [
        "qcow2"
        "raw"
      ];
      example = "raw";
      description = "The format of an image given as a URL.";
    };
    userData = unset "a preset that installs and configures squid" {
      type = own.bytes;
      example = lib.literalExpression "builtins.readFile ./web.yaml";
      description = ''
        cloud-init user-data, which reaches the guest byte for byte. It stands in the Nix
        store, where everybody can read it: nothing secret belongs here.
      '';
    };
    networkConfig = unset "DHCP" {
      type = own.bytes;
      example = lib.literalExpression "builtins.readFile ./network.yaml";
      description = "cloud-init network-config, byte for byte. In the Nix store like `userData`.";
    };
    allowedClients = unset "the guest's own networks" {
      type = types.listOf own.clientNetwork;
      example = [
        "192.168.1.0/24"
        "2001:db8::/64"
      ];
      description = "The clients that the preset's squid serves.";
    };
    vcpus = unset "`1`" {
      type = types.ints.between 1 512;
      example = 2;
      description = "Virtual processors.";
    };
    memoryMiB = unset "`1024`" {
      type = types.ints.between 128 4194304;
      example = 2048;
      description = "Memory in MiB.";
    };
    diskGiB = unset "the image's own size" {
      type = types.ints.between 1 65536;
      example = 20;
      description = "The disk in GiB; no smaller than the image.";
    };
    port = unset "`3128`" {
      type = types.ints.between 1 65535;
      example = 8080;
      description = "The TCP port of the proxy in the guest.";
    };
    healthUrl = unset "`services.proxyd.health.url`" {
      type = own.httpUrl;
      example = "http://example.org/generate_204";
      description = "What is fetched through this Proxy to see whether it is healthy.";
    };
    autostart = unset "`true`" {
      type = types.bool;
      example = false;
      description = "Whether the guest is started together with its host.";
    };
    onRemoval = unset "`delete`" {
      type = types.enum [
        "delete"
        "keep"
      ];
      example = "keep";
      description = ''
        What becomes of the Proxy when it leaves the configuration: it is deleted with its
        disk, or kept as if it had been made by `proxyctl create`.
      '';
    };
  };

  healthOptions = {
    url = unset "a public address that answers 204" {
      type = own.httpUrl;
      example = "http://example.org/generate_204";
      description = "What is fetched through each Proxy.";
    };
    expectStatus = unset "`204`" {
      type = types.ints.between 100 599;
      example = 200;
      description = "The HTTP status that counts as healthy.";
    };
    interval = unset "`30s`" {
      type = own.duration {
        least = "1s";
        most = "24h";
      };
      example = "1m";
      description = "The time between two probes, `1s` to `24h`.";
    };
    timeout = unset "`5s`, or the interval if that is less" {
      type = own.duration {
        least = "100ms";
        most = "24h";
      };
      example = "2s";
      description = "The most a probe may take, `100ms` to the interval.";
    };
    unhealthyAfter = unset "`3`" {
      type = types.ints.between 1 4294967295;
      example = 5;
      description = "Failures in a row that make a healthy Proxy unhealthy.";
    };
    healthyAfter = unset "`1`" {
      type = types.ints.between 1 4294967295;
      example = 2;
      description = "Answers in a row that make it healthy again.";
    };
  };

  poolOptions.path = mkOption {
    type = own.unitPath;
    example = "/srv/vms";
    description = "The directory, which is created where it is missing.";
  };

  createdNetworkOptions = {
    address = mkOption {
      type = own.ipv4;
      example = "10.64.0.1";
      description = "The host's address in it, which is the guests' gateway and DNS server.";
    };
    prefixLength = mkOption {
      type = types.ints.between 8 30;
      default = 24;
      example = 22;
      description = "The length of its prefix.";
    };
    dhcpStart = mkOption {
      type = own.ipv4;
      example = "10.64.0.2";
      description = "The first address for guests.";
    };
    dhcpEnd = mkOption {
      type = own.ipv4;
      example = "10.64.0.254";
      description = "The last address for guests.";
    };
    forward = mkOption {
      type = types.enum [
        "nat"
        "route"
        "open"
      ];
      default = "nat";
      example = "route";
      description = ''
        How guests reach further than the host: `nat` behind its address; `route` with
        their own, which others can reach then; `open` like `route` without firewall rules.
      '';
    };
    bridge = mkOption {
      type = types.nullOr own.interfaceName;
      default = null;
      defaultText = lib.literalMD "libvirt's choice";
      example = "virbr-proxyd";
      description = "The name of the interface on the host.";
    };
  };

  named = options: types.attrsOf (types.submodule { inherit options; });
in
{
  options.services.proxyd = {
    enable = lib.mkEnableOption "proxyd, which runs forward proxies as virtual machines";

    package = mkOption {
      type = types.package;
      default = pkgs.proxyd;
      defaultText = lib.literalExpression "pkgs.proxyd";
      example = lib.literalExpression "pkgs.proxyd.overrideAttrs { doCheck = false; }";
      description = "The package of daemon and proxyctl.";
    };

    providers = mkOption {
      type = named providerOptions;
      default = {
        local = { };
      };
      example = {
        home = { };
        attic.uri = "qemu+ssh://proxyd-remote@attic.example.ts.net/system";
      };
      description = "The provider entries by name: each a libvirt host with a pool and a network.";
    };

    images = mkOption {
      type = named sharedImageOptions;
      default = { };
      example = {
        debian-13.url = "https://example.org/debian-13-genericcloud-amd64.qcow2";
      };
      description = ''
        The images by key. A base in use is never replaced: for another image take another
        key.
      '';
    };

    proxies = mkOption {
      type = named proxyOptions;
      default = { };
      example = {
        web.image = "debian-13";
      };
      description = "Proxies that are there because the configuration says so, by name.";
    };

    health = mkOption {
      type = types.submodule { options = healthOptions; };
      default = { };
      example = {
        url = "http://example.org/generate_204";
      };
      description = "How Proxies are probed.";
    };

    metrics = mkOption {
      type = types.submodule {
        options.listen = unset "nowhere" {
          type = own.metricsAddress;
          example = "127.0.0.1:9750";
          description = ''
            Where Prometheus may ask: a loopback address and port, or
            `unix:/run/proxyd/metrics.sock`.
          '';
        };
      };
      default = { };
      example = {
        listen = "127.0.0.1:9750";
      };
      description = "Metrics for Prometheus.";
    };

    settings = mkOption {
      inherit (json) type;
      default = { };
      example = {
        providers.home.maxConcurrent = 4;
      };
      description = ''
        More of the configuration file, as it stands there (camelCase JSON); merged last,
        over everything that the other options say. The build checks it all the same.
      '';
    };

    group = mkOption {
      type = types.nullOr (
        types.addCheck types.str (text: builtins.match "[a-z_][a-z0-9_-]{0,30}" text != null)
        // {
          description = "name of a group";
        }
      );
      default = null;
      example = "wheel";
      description = ''
        A group whose members may manage Proxies and images without a password. Whoever is
        in it can have any image booted on the hosts of the configuration. Without it,
        polkit asks for an administrator's password; root is never asked.
      '';
    };

    createPool = mkOption {
      type = named poolOptions;
      default = {
        default.path = "/var/lib/libvirt/images";
      };
      example = {
        vms.path = "/srv/vms";
      };
      description = ''
        Directory pools of this host's libvirt, by name, that are defined where they are
        missing, and started. One that is there with another path is not touched: the
        service proxyd-libvirt fails and says so. `{ }` for none.
      '';
    };

    createNetwork = mkOption {
      type = named createdNetworkOptions;
      default = {
        default = {
          address = "192.168.122.1";
          dhcpStart = "192.168.122.2";
          dhcpEnd = "192.168.122.254";
        };
      };
      example = {
        proxies = {
          address = "10.64.0.1";
          dhcpStart = "10.64.0.2";
          dhcpEnd = "10.64.0.254";
        };
      };
      description = ''
        Networks of this host's libvirt, by name, that are defined where they are missing,
        and started. One that is there with another address is not touched: the service
        proxyd-libvirt fails and says so. `{ }` for none.
      '';
    };

    configFile = mkOption {
      type = types.package;
      internal = true;
      readOnly = true;
      default = import ./config-file.nix { inherit lib pkgs; } config.services.proxyd;
      description = "The configuration file, checked.";
    };
  };
}
