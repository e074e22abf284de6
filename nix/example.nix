# A home server that runs proxies, on itself and on a host in the attic that it reaches
# over a VPN: two entries, three images, two Proxies. docs/nixos.md goes through it.
{
  services.proxyd = {
    enable = true;
    group = "wheel";

    providers = {
      home = { };
      attic = {
        uri = "qemu+ssh://proxyd-remote@attic.example.ts.net/system";
        # The attic's guests are on its LAN, which the VPN routes to.
        network.bridge = "br0";
        ssh = {
          keyFile = "/var/lib/secrets/proxyd-attic";
          knownHosts = "attic.example.ts.net ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEXAMPLEexampleEXAMPLEexampleEXAMPLEexample00";
        };
        maxConcurrent = 1;
      };
    };

    images = {
      # For every entry, held to the digest that its publisher lists.
      debian-13 = {
        url = "https://cloud.example.org/debian-13-genericcloud-amd64.qcow2";
        sha256Url = "https://cloud.example.org/SHA256SUMS";
      };
      # For one of them, pinned.
      alpine-3 = {
        url = "https://cloud.example.org/alpine-3-cloudinit.qcow2";
        sha256 = "0f3b4b6ad4ed6ae1b3a3d8c8f0b1c5ed5dbba2f4c1ea2cc0b5e9e4cb0e0e4a55";
        firmware = "bios";
        providers = [ "home" ];
      };
      # A file that this host has already.
      own = {
        url = "/var/lib/images/own.raw";
        format = "raw";
        providers = [ "home" ];
      };
    };

    proxies = {
      web = {
        provider = "home";
        image = "debian-13";
        vcpus = 2;
        memoryMiB = 2048;
        allowedClients = [ "192.168.1.0/24" ];
      };
      far = {
        provider = "attic";
        image = "debian-13";
        allowedClients = [ "100.64.0.0/10" ];
        onRemoval = "keep";
      };
    };

    health = {
      url = "http://example.org/generate_204";
      interval = "1m";
    };
    metrics.listen = "127.0.0.1:9750";
  };

  # The rest of a machine, for the example to be whole.
  nixpkgs.hostPlatform = "x86_64-linux";
  boot.loader.systemd-boot.enable = true;
  fileSystems."/" = {
    device = "/dev/disk/by-label/nixos";
    fsType = "ext4";
  };
  system.stateVersion = "25.11";
}
