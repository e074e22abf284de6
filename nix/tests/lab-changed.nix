# The lab's host a day later: another image, and another rhythm.
{
  imports = [ ./lab.nix ];
  services.proxyd = {
    images.own.url = "/srv/lab/own.qcow2";
    health.healthyAfter = 2;
  };
}
