application_id 1651917123
user_version 1
CREATE TABLE choices (
    b_no INTEGER NOT NULL,
    address_key TEXT NOT NULL,
    address TEXT NOT NULL,
    zipcode TEXT NOT NULL,
    chosen_by TEXT NOT NULL,
    chosen_on INTEGER NOT NULL,
    PRIMARY KEY (b_no, address_key)
) STRICT, WITHOUT ROWID
