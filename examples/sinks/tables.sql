CREATE TABLE accounts (account text PRIMARY KEY, balance bigint NOT NULL, payments bigint NOT NULL);
CREATE TABLE bookings (account text, number bigint, amount bigint NOT NULL, PRIMARY KEY (account, number));
