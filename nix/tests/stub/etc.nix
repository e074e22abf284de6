# /etc of a machine, as NixOS lays it out.
{
  lib,
  pkgs,
  config,
}:
let
  inherit (lib) concatMapStrings concatStringsSep mapAttrsToList;

  entries = key: value: concatMapStrings (item: "${key}=${item}\n") (lib.flatten [ value ]);
  words = key: values: lib.optionalString (values != [ ]) "${key}=${toString values}\n";
  text = value: if builtins.isBool value then (if value then "true" else "false") else toString value;

  unit =
    name: service:
    let
      path = service.path ++ [
        pkgs.coreutils
        pkgs.gnugrep
        pkgs.gnused
      ];
      environment = service.environment // {
        PATH = concatStringsSep ":" (map (package: "${package}/bin") path);
      };
      start = pkgs.writeShellScript "unit-script-${name}" "set -e\n${service.script}";
    in
    pkgs.writeText "${name}.service" (
      "[Unit]\n"
      + lib.optionalString (service.description != "") "Description=${service.description}\n"
      + words "After" service.after
      + words "Before" service.before
      + words "Wants" service.wants
      + words "X-Reload-Triggers" service.reloadTriggers
      + words "X-Restart-Triggers" service.restartTriggers
      + "\n[Service]\n"
      + lib.concatStringsSep "" (
        mapAttrsToList (key: value: "Environment=\"${key}=${value}\"\n") environment
      )
      + lib.optionalString (service.script != "") "ExecStart=${start}\n"
      + lib.concatStringsSep "" (
        mapAttrsToList (
          key: value: entries key (if builtins.isList value then value else text value)
        ) service.serviceConfig
      )
    );

  installUnit = name: service: ''
    place_unit ${name} ${unit name service} "${toString service.wantedBy}" "${toString service.aliases}"
  '';

  sysusers = lib.concatStringsSep "" (
    mapAttrsToList (name: _: "g ${name} - -\n") config.users.groups
    ++ mapAttrsToList (
      name: user:
      "u ${name} -:${user.group} \"${user.description}\"\n"
      + concatMapStrings (group: "m ${name} ${group}\n") user.extraGroups
    ) config.users.users
  );
in
pkgs.runCommand "nixos-system" { } ''
  units="$out/etc/systemd/system"
  mkdir -p "$units"

  # A unit of a package gets a drop-in; any other is written whole.
  place_unit() {
    local name=$1 file=$2 target alias package
    for package in ${toString config.systemd.packages}; do
      if [ -e "$package/lib/systemd/system/$name.service" ]; then
        ln -s "$package/lib/systemd/system/$name.service" "$units/$name.service"
        mkdir "$units/$name.service.d"
        ln -s "$file" "$units/$name.service.d/overrides.conf"
      fi
    done
    [ -e "$units/$name.service" ] || ln -s "$file" "$units/$name.service"
    for target in $3; do
      mkdir -p "$units/$target.wants"
      ln -s "../$name.service" "$units/$target.wants/"
    done
    for alias in $4; do ln -s "$name.service" "$units/$alias"; done
  }

  ${lib.concatStringsSep "" (mapAttrsToList installUnit config.systemd.services)}
  ${lib.concatStringsSep "" (
    mapAttrsToList (name: file: ''
      mkdir -p "$out/etc/$(dirname ${name})"
      ln -s ${file.source} "$out/etc/${name}"
    '') config.environment.etc
  )}
  mkdir -p "$out/etc/dbus-1/system.d" "$out/etc/sysusers.d" "$out/sw/bin" "$out/etc/polkit-1/rules.d"
  for package in ${toString config.services.dbus.packages}; do
    ln -s "$package"/share/dbus-1/system.d/* "$out/etc/dbus-1/system.d/"
    mkdir -p "$out/share/dbus-1/system-services"
    ln -s "$package"/share/dbus-1/system-services/* "$out/share/dbus-1/system-services/"
  done
  for package in ${toString config.environment.systemPackages}; do
    ln -s "$package"/bin/* "$out/sw/bin/"
    mkdir -p "$out/share/polkit-1/actions"
    ln -s "$package"/share/polkit-1/actions/* "$out/share/polkit-1/actions/"
  done
  ln -s ${pkgs.writeText "sysusers" sysusers} "$out/etc/sysusers.d/nixos.conf"
  ln -s ${pkgs.writeText "polkit" config.security.polkit.extraConfig} "$out/etc/polkit-1/rules.d/10-nixos.rules"
''
