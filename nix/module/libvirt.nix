# This host as a place for guests: libvirt, and the pools and networks that it is to have.
# What is there already is started and otherwise left alone.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.proxyd;
  addresses = import ./addresses.nix { inherit lib; };
  inherit (lib) escapeXML;

  local = lib.any (provider: !lib.hasPrefix "qemu+ssh:" provider.uri) (lib.attrValues cfg.providers);
  libvirtd = config.virtualisation.libvirtd;

  poolFile =
    name: pool:
    pkgs.writeText "proxyd-pool.xml" ''
      <pool type='dir'>
        <name>${escapeXML name}</name>
        <target><path>${escapeXML pool.path}</path></target>
      </pool>
    '';

  networkFile =
    name: network:
    pkgs.writeText "proxyd-network.xml" ''
      <network>
        <name>${escapeXML name}</name>
        <forward mode='${network.forward}'/>
        <bridge ${
          lib.optionalString (network.bridge != null) "name='${escapeXML network.bridge}' "
        }stp='on' delay='0'/>
        <ip address='${network.address}' prefix='${toString network.prefixLength}'>
          <dhcp><range start='${network.dhcpStart}' end='${network.dhcpEnd}'/></dhcp>
        </ip>
      </network>
    '';

  # libvirt keeps a network's mask as it was given, which is not always a prefix.
  netmask =
    prefixLength:
    let
      value = 4294967296 - addresses.size prefixLength;
      byte = divisor: toString (value / divisor - value / divisor / 256 * 256);
    in
    lib.concatMapStringsSep "." byte [
      16777216
      65536
      256
      1
    ];

  ensurePool =
    name: pool:
    "ensure_pool ${
      lib.escapeShellArgs [
        name
        pool.path
        (escapeXML pool.path)
        "${poolFile name pool}"
      ]
    }";

  ensureNetwork =
    name: network:
    "ensure_network ${
      lib.escapeShellArgs [
        name
        network.address
        (toString network.prefixLength)
        (netmask network.prefixLength)
        "${networkFile name network}"
      ]
    }";

  script = ''
    set -u
    failed=0

    complain() {
      printf 'proxyd: %s\n' "$1" >&2
      failed=1
    }

    # KIND NAME FILE: has NAME defined, started, and started with the host.
    ensure() {
      local kind=$1 name=$2 file=$3 info
      virsh -q "$kind-info" "$name" >/dev/null 2>&1 || virsh -q "$kind-define" "$file" || return
      virsh -q "$kind-autostart" "$name" || return
      info=$(LC_ALL=C virsh "$kind-info" "$name") || return
      # Two that start it at once are no failure, as long as it runs.
      grep -Eq '^(State: +running|Active: +yes)' <<<"$info" ||
        virsh -q "$kind-start" "$name" ||
        LC_ALL=C virsh "$kind-info" "$name" | grep -Eq '^(State: +running|Active: +yes)'
    }

    ensure_pool() {
      local name=$1 path=$2 shown=$3 file=$4 there
      mkdir -p -m 0711 "$path" || { complain "the directory $path of pool $name can't be made"; return; }
      if there=$(virsh pool-dumpxml "$name" 2>/dev/null) && ! grep -Fq "<path>$shown</path>" <<<"$there"; then
        complain "the pool $name is there with another path, and stays as it is: name that in services.proxyd.createPool, or remove the pool (virsh pool-destroy, pool-undefine)"
        return
      fi
      ensure pool "$name" "$file" || complain "the pool $name can't be made ready"
    }

    ensure_network() {
      local name=$1 address=$2 prefix=$3 mask=$4 file=$5 there
      if there=$(virsh net-dumpxml --inactive "$name" 2>/dev/null) &&
        ! grep -Eq "<ip address='$address' (prefix='$prefix'|netmask='$mask')" <<<"$there"; then
        complain "the network $name is there with another address, and stays as it is: name that in services.proxyd.createNetwork, or remove the network (virsh net-destroy, net-undefine)"
        return
      fi
      ensure net "$name" "$file" || complain "the network $name can't be made ready"
    }

  ''
  + lib.concatMapStrings (line: line + "\n") (
    lib.mapAttrsToList ensurePool cfg.createPool ++ lib.mapAttrsToList ensureNetwork cfg.createNetwork
  )
  + ''
    exit "$failed"
  '';
in
{
  config = lib.mkIf (cfg.enable && local) {
    # With it comes OVMF, by libvirtd's own default.
    virtualisation.libvirtd.enable = lib.mkDefault true;

    systemd.services.proxyd-libvirt =
      lib.mkIf (libvirtd.enable && (cfg.createPool != { } || cfg.createNetwork != { }))
        {
          description = "Pools and networks of libvirt for proxyd";
          wantedBy = [ "multi-user.target" ];
          wants = [ "libvirtd.service" ];
          after = [ "libvirtd.service" ];
          # It waits for nothing that fails here: proxyd tells by itself what it lacks.
          before = [ "proxyd.service" ];
          path = [
            libvirtd.package
            pkgs.gnugrep
          ];
          environment.LIBVIRT_DEFAULT_URI = "qemu:///system";
          inherit script;
          serviceConfig = {
            Type = "oneshot";
            RemainAfterExit = true;
          };
        };
  };
}
