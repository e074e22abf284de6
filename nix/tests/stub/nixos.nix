# A NixOS of the options that the module sets, and what NixOS makes of them: /etc, units
# with their drop-ins, users, polkit rules.
{ lib, packagesOf }:
{
  modules,
  specialArgs ? { },
}:
let
  inherit (lib) mkOption types;

  some = type: default: mkOption { inherit type default; };
  anythingOf = some types.anything { };

  serviceOptions = {
    description = some types.str "";
    wantedBy = some (types.listOf types.str) [ ];
    wants = some (types.listOf types.str) [ ];
    after = some (types.listOf types.str) [ ];
    before = some (types.listOf types.str) [ ];
    aliases = some (types.listOf types.str) [ ];
    path = some (types.listOf types.unspecified) [ ];
    environment = anythingOf;
    script = some types.str "";
    reloadTriggers = some (types.listOf types.unspecified) [ ];
    restartTriggers = some (types.listOf types.unspecified) [ ];
    serviceConfig = anythingOf;
  };

  nixos =
    { config, ... }:
    let
      inherit (config.nixpkgs) pkgs;
      etc = import ./etc.nix { inherit lib pkgs config; };
      failed = map (assertion: "- ${assertion.message}") (
        lib.filter (assertion: !assertion.assertion) config.assertions
      );
    in
    {
      options = {
        assertions = some (types.listOf types.unspecified) [ ];
        nixpkgs = {
          hostPlatform = some types.str "x86_64-linux";
          overlays = some (types.listOf types.unspecified) [ ];
          pkgs = mkOption { type = types.unspecified; };
        };
        environment = {
          systemPackages = some (types.listOf types.package) [ ];
          etc = some (types.attrsOf (
            types.submodule { options.source = mkOption { type = types.unspecified; }; }
          )) { };
        };
        users = {
          users = anythingOf;
          groups = anythingOf;
        };
        services.dbus.packages = some (types.listOf types.package) [ ];
        services.nginx = anythingOf;
        services.cloud-init = anythingOf;
        services.qemuGuest = anythingOf;
        services.squid = anythingOf;
        security.polkit = {
          enable = some types.bool false;
          extraConfig = some types.lines "";
        };
        programs.ssh.package = some types.package pkgs.openssh;
        virtualisation = {
          libvirtd = {
            enable = some types.bool false;
            package = some types.package pkgs.libvirt;
          };
          memorySize = some types.int 1024;
          diskSize = some types.int 1024;
          cores = some types.int 1;
        };
        networking = anythingOf;
        boot = anythingOf;
        fileSystems = anythingOf;
        system = {
          stateVersion = some types.str "";
          build = some types.unspecified { };
        };
        systemd = {
          package = some types.package pkgs.systemd;
          packages = some (types.listOf types.package) [ ];
          services = some (types.attrsOf (types.submodule { options = serviceOptions; })) { };
        };
      };
      config = {
        nixpkgs.pkgs = lib.foldl' (pkgs: overlay: pkgs.extend overlay) (packagesOf {
          inherit lib;
          system = config.nixpkgs.hostPlatform;
        }) config.nixpkgs.overlays;
        system.build.toplevel =
          if failed == [ ] then etc else throw "Failed assertions:\n${lib.concatStringsSep "\n" failed}";
      };
    };

  evaluated = lib.evalModules {
    modules = [ nixos ] ++ modules;
    specialArgs = specialArgs // {
      inherit (evaluated.config.nixpkgs) pkgs;
    };
  };
in
evaluated
