# A machine that has libvirt, an image that Nix built, and a Proxy of it that answers.
# For whoever has nixpkgs, and KVM or patience: the guest is a machine in a machine.
module:
{ pkgs, lib, ... }:
let
  image = import (pkgs.path + "/nixos/lib/make-disk-image.nix") {
    inherit pkgs lib;
    inherit (pkgs.nixos ./guest.nix) config;
    format = "qcow2";
    partitionTableType = "efi";
    additionalSpace = "256M";
  };
in
{
  name = "proxyd";

  nodes.machine = {
    imports = [ module ];
    virtualisation = {
      memorySize = 3072;
      diskSize = 8192;
      cores = 2;
    };
    # What answers through the Proxy.
    services.nginx = {
      enable = true;
      virtualHosts.default.locations."/generate_204".return = "204";
    };
    networking.firewall.allowedTCPPorts = [ 80 ];
    services.proxyd = {
      enable = true;
      group = "wheel";
      images.nixos.url = "${image}/nixos.qcow2";
      proxies.web = {
        image = "nixos";
        # The guest has all that it needs; this only replaces the preset.
        userData = "#cloud-config\n{}\n";
      };
      health = {
        url = "http://192.168.122.1/generate_204";
        interval = "5s";
      };
    };
  };

  testScript = ''
    machine.wait_for_unit("proxyd.service")
    machine.succeed("systemctl is-active proxyd-libvirt.service")
    machine.wait_until_succeeds("proxyctl show web | grep -q Ready", timeout=1800)
    machine.wait_until_succeeds("proxyctl probe web", timeout=300)
    machine.succeed("journalctl -x -u proxyd | grep -q 'A Proxy answers'")
    machine.succeed("proxyctl list >&2")
  '';
}
