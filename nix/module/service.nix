# The service as the package ships it, with what this host adds: its user and groups, its
# keys, its configuration, and who may use it.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.proxyd;
  inherit (import ./rendering.nix { inherit lib; }) credential;
  overSsh = lib.filterAttrs (_: provider: provider.ssh != null) cfg.providers;

  catalogs = "/usr/local/lib/systemd/catalog";
in
{
  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.package ];
    environment.etc."proxyd/config.json".source = cfg.configFile;

    users.users.proxyd = {
      isSystemUser = true;
      group = "proxyd";
      # libvirt's polkit rule asks the user database, not the process.
      extraGroups = lib.optional config.virtualisation.libvirtd.enable "libvirtd";
      description = "Forward proxies as virtual machines";
    };
    users.groups = {
      proxyd = { };
    }
    // lib.optionalAttrs (cfg.group != null) { ${cfg.group} = { }; };

    services.dbus.packages = [ cfg.package ];
    security.polkit = {
      enable = lib.mkDefault true;
      extraConfig = lib.mkIf (cfg.group != null) ''
        polkit.addRule(function(action, subject) {
          if ((action.id == "org.proxyd1.manage-proxies" ||
               action.id == "org.proxyd1.manage-images") &&
              subject.isInGroup("${cfg.group}")) {
            return polkit.Result.YES;
          }
        });
      '';
    };

    systemd.packages = [ cfg.package ];
    systemd.services.proxyd = {
      wantedBy = [ "multi-user.target" ];
      # The bus starts it by this name.
      aliases = [ "dbus-org.proxyd1.service" ];
      path = [ config.programs.ssh.package ];
      # Proxies whose specification stays are not touched by a reload.
      reloadTriggers = [ cfg.configFile ];
      serviceConfig = {
        # libvirt's group has another name here, and need not be there at all: see the user.
        SupplementaryGroups = [ "" ];
        LoadCredential = lib.mapAttrsToList (
          entry: provider: "${credential entry}:${provider.ssh.keyFile}"
        ) overSsh;
        ReadWritePaths = lib.mapAttrsToList (_: pool: "-${pool.path}") cfg.createPool;
      };
    };

    # journalctl reads catalogs in its own store path, where nobody can add one, and here.
    systemd.services.proxyd-catalog = {
      description = "Journal catalog of proxyd";
      wantedBy = [ "multi-user.target" ];
      script = ''
        mkdir -p ${catalogs}
        ln -sfn ${cfg.package}/lib/systemd/catalog/proxyd.catalog ${catalogs}/proxyd.catalog
        ${config.systemd.package}/bin/journalctl --update-catalog
      '';
      serviceConfig = {
        Type = "oneshot";
        RemainAfterExit = true;
        # A link that leads nowhere would spoil everybody's catalog.
        ExecStop = "${pkgs.coreutils}/bin/rm -f ${catalogs}/proxyd.catalog";
      };
    };
  };
}
