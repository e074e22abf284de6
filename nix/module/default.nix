# services.proxyd: Proxies, images and hosts declared, and a host that has them.
{
  imports = [
    ./options.nix
    ./assertions.nix
    ./service.nix
    ./libvirt.nix
  ];
}
