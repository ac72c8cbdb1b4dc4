package minibroker.junit;

import java.lang.annotation.ElementType;
import java.lang.annotation.Inherited;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import org.junit.jupiter.api.extension.ExtendWith;

/** One broker for all tests of a class, which get it as a parameter of type Minibroker. */
@Target(ElementType.TYPE)
@Retention(RetentionPolicy.RUNTIME)
@Inherited
@ExtendWith(MinibrokerExtension.class)
public @interface WithMinibroker {
    /** Settings of the broker, e.g. {@code "num.partitions=3"}. */
    String[] value() default {};
}
