'use strict';

// Starts a broker with the package of the first argument, prints its process id, and waits.
const { Minibroker } = require(process.argv[2]);

Minibroker.start().then((kafka) => {
  console.log(kafka.pid);
  setInterval(() => {}, 60_000);
});
