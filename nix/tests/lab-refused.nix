# What no option lets through, by the way around them.
{
  imports = [ ./lab.nix ];
  services.proxyd.settings.providers.home.maxConcurrent = 1000;
}
