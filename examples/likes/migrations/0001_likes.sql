-- part likes
CREATE TABLE likes (
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    subject    text             NOT NULL,
    PRIMARY KEY (did, collection, rkey)
);

COMMENT ON TABLE likes IS 'The at-uri of the post that each like names.';
