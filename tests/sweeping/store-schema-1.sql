-- A store that skipinit 0.1.0 wrote (commit bff90c1), as SQL: one run written in two ways, one diverged, one cut off.
BEGIN TRANSACTION;
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO "meta" VALUES('commit',NULL);
INSERT INTO "meta" VALUES('created','2026-11-16T00:58:16+00:00');
INSERT INTO "meta" VALUES('schema',1);
INSERT INTO "meta" VALUES('session_epochs',0);
INSERT INTO "meta" VALUES('session_started','2026-11-16T00:58:16+00:00');
INSERT INTO "meta" VALUES('skipinit','0.1.0');
CREATE TABLE metrics (
    trial INTEGER NOT NULL REFERENCES trials (key),
    epoch INTEGER NOT NULL, train_loss REAL, test_accuracy REAL, test_loss REAL, lr REAL, images_per_second REAL, clean_train_loss REAL,
    PRIMARY KEY (trial, epoch)
) WITHOUT ROWID;
INSERT INTO "metrics" VALUES(2,1,1.5,60.0,1.2,0.1,1000.0,NULL);
INSERT INTO "metrics" VALUES(2,2,0.5,90.5,0.4,0.05,1000.0,NULL);
INSERT INTO "metrics" VALUES(4,1,1.25,61.0,1.2,0.1,1000.0,NULL);
CREATE TABLE trials (
    key        INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    config     TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'failed', 'diverged', 'finished')),
    reason     TEXT,
    traceback  TEXT,
    classes    INTEGER,
    provenance TEXT,
    started    TEXT,
    ended      TEXT,
    seconds    REAL NOT NULL DEFAULT 0
);
INSERT INTO "trials" VALUES(1,'35dbf32e07cee277','{"augment": true, "batch_size": 64, "clean_train_loss": false, "crop_padding": "zero", "dampening": 0.0, "data": "digits", "epochs": 2, "l2": 0.0005, "lr": 0.1, "model": {"alpha": 0.0, "batch_statistics_at_test": false, "biases": null, "classifier_init": null, "dropout": null, "fixup_components": null, "ghost_batch": null, "in_channels": 1, "name": "wrn10_1", "num_classes": 10, "projection": null, "scalar_bias": null, "scheme": "skipinit"}, "momentum": 0.9, "precision": "float32", "schedule": "cifar", "seed": 0}','pending',NULL,NULL,NULL,NULL,NULL,NULL,0.0);
INSERT INTO "trials" VALUES(2,'3d35b7a5ead46f02','{"augment": true, "batch_size": 64, "clean_train_loss": false, "crop_padding": "zero", "dampening": 0.0, "data": "digits", "epochs": 2, "l2": 0.0005, "lr": 0.1, "model": {"alpha": null, "batch_statistics_at_test": false, "biases": null, "classifier_init": null, "dropout": null, "fixup_components": null, "ghost_batch": null, "in_channels": 1, "name": "wrn10_1", "num_classes": 10, "projection": null, "scalar_bias": null, "scheme": "skipinit"}, "momentum": 0.9, "precision": "float32", "schedule": "cifar", "seed": 0}','finished',NULL,NULL,10,'{"commit": "4af7d97", "device": "cpu", "machine": "Linux x86_64, 2 cores", "versions": {"python": "3.11", "skipinit": "0.1.0", "torch": "2.13.0"}}','2026-11-16T00:58:16+00:00','2026-11-16T00:58:16+00:00',12.5);
INSERT INTO "trials" VALUES(3,'907bfd356ecfaefc','{"augment": true, "batch_size": 64, "clean_train_loss": false, "crop_padding": "zero", "dampening": 0.0, "data": "digits", "epochs": 2, "l2": 0.0005, "lr": 100.0, "model": {"alpha": null, "batch_statistics_at_test": false, "biases": null, "classifier_init": null, "dropout": null, "fixup_components": null, "ghost_batch": null, "in_channels": 1, "name": "wrn10_1", "num_classes": 10, "projection": null, "scalar_bias": null, "scheme": "skipinit"}, "momentum": 0.9, "precision": "float32", "schedule": "cifar", "seed": 0}','diverged','the loss was not finite at step 7',NULL,10,'{"commit": "4af7d97", "device": "cpu", "machine": "Linux x86_64, 2 cores", "versions": {"python": "3.11", "skipinit": "0.1.0", "torch": "2.13.0"}}','2026-11-16T00:58:16+00:00','2026-11-16T00:58:16+00:00',0.5);
INSERT INTO "trials" VALUES(4,'c716f344af3bae54','{"augment": true, "batch_size": 64, "clean_train_loss": false, "crop_padding": "zero", "dampening": 0.0, "data": "digits", "epochs": 2, "l2": 0.0005, "lr": 0.1, "model": {"alpha": null, "batch_statistics_at_test": false, "biases": null, "classifier_init": null, "dropout": null, "fixup_components": null, "ghost_batch": null, "in_channels": 1, "name": "wrn10_1", "num_classes": 10, "projection": null, "scalar_bias": null, "scheme": "skipinit"}, "momentum": 0.9, "precision": "float32", "schedule": "cifar", "seed": 1}','pending',NULL,NULL,10,'{"commit": "4af7d97", "device": "cpu", "machine": "Linux x86_64, 2 cores", "versions": {"python": "3.11", "skipinit": "0.1.0", "torch": "2.13.0"}}','2026-11-16T00:58:16+00:00',NULL,0.0);
COMMIT;
