# A guest that is a proxy as soon as it is up.
{
  services.cloud-init = {
    enable = true;
    network.enable = true;
  };
  services.qemuGuest.enable = true;
  services.squid.enable = true;
  networking = {
    hostName = "";
    firewall.allowedTCPPorts = [ 3128 ];
  };
  boot = {
    loader.systemd-boot.enable = true;
    loader.timeout = 0;
    growPartition = true;
    kernelParams = [ "console=ttyS0" ];
    initrd.availableKernelModules = [
      "virtio_pci"
      "virtio_blk"
      "virtio_net"
    ];
  };
  fileSystems = {
    "/" = {
      device = "/dev/disk/by-label/nixos";
      fsType = "ext4";
      autoResize = true;
    };
    "/boot" = {
      device = "/dev/disk/by-label/ESP";
      fsType = "vfat";
    };
  };
  system.stateVersion = "25.11";
}
